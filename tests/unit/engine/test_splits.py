"""Sequences that go on from another one's rows compute what they would from the beginning."""

import asyncio

import pytest
import torch

from outrider.engine import CacheTooShort, JobInput, OutOfBlocks
from outrider.engine.cache import SequenceCache
from tests.unit.engine.conftest import Feed, Make, build, random_ids


class Split(Feed):
    """Feeds ids behind the first positions of another sequence."""

    def __init__(
        self, cache: SequenceCache, parent: SequenceCache, length: int, ids: list[int]
    ) -> None:
        super().__init__(cache, JobInput(length, ids, len(ids), committed=parent.committed_length))
        self.parent, self.length = parent, length

    def start(self) -> JobInput:
        self.cache.split_from(self.parent, self.length)
        return super().start()


@pytest.mark.parametrize("num_known", [17, 31, 32, 33])  # blocks hold 16 positions
async def test_each_goes_on_as_if_alone_and_leaves_the_parent_as_it_was(
    make_bench: Make, num_known: int
) -> None:
    model = build("qwen2", torch.bfloat16)
    bench, ids = make_bench(model), random_ids(num_known + 3)
    parent = bench.open()
    await bench.feed(parent, ids, committed=num_known)
    tails = [random_ids(5, seed=n) for n in range(1, 4)]
    expected = [
        (await bench.feed(bench.open("alone"), [*ids[: num_known + n], *tail]))[-5:]
        for n, tail in enumerate(tails)
    ]
    splits = [
        Split(bench.open(), parent, num_known + n, list(tail)) for n, tail in enumerate(tails)
    ]
    rows = bench.engine.stats().num_rows
    await asyncio.gather(*(bench.engine.run(job) for job in splits))
    assert bench.engine.stats().num_rows == rows + 15, "nothing of the parent is computed again"
    for job, logits in zip(splits, expected, strict=True):
        assert torch.equal(job.logits[0], logits)
        assert job.cache.committed_length == num_known
        bench.engine.release(job.cache)
    more = random_ids(4, seed=9)
    again = await bench.feed(parent, more, start=len(ids))
    whole = await bench.feed(bench.open("whole"), [*ids, *more])
    assert torch.equal(again, whole[-4:])
    await bench.settle()


async def test_the_parent_may_go_on_and_end_before_them(make_bench: Make) -> None:
    bench, ids = make_bench(build("qwen2", torch.bfloat16)), random_ids(20)
    parent = bench.open()
    await bench.feed(parent, ids)
    job = Split(bench.open(), parent, 18, [5, 6])
    await bench.engine.run(job)
    await bench.feed(parent, [7, 8, 9], start=17)  # writes into a block that both hold
    bench.engine.release(parent)
    got = await bench.feed(job.cache, [4], start=20)
    expected = await bench.feed(bench.open("other"), [*ids[:18], 5, 6, 4])
    assert torch.equal(got[0], expected[-1])
    await bench.settle()


async def test_what_the_parent_does_not_hold_cannot_be_gone_on_from(make_bench: Make) -> None:
    bench = make_bench(build("qwen2", torch.bfloat16))
    parent = bench.open()
    await bench.feed(parent, random_ids(20))
    with pytest.raises(CacheTooShort):
        await bench.engine.run(Split(bench.open(), parent, 21, [5]))


async def test_nobody_loses_blocks_for_them(make_bench: Make) -> None:
    bench = make_bench(build("qwen2", torch.bfloat16), num_blocks=4)
    idle, parent = bench.open(), bench.open()
    await bench.feed(idle, random_ids(30), committed=0)
    await bench.feed(parent, random_ids(30, seed=1), committed=0)
    job = Split(bench.open(), parent, 30, [5])
    with pytest.raises(OutOfBlocks, match="another outcome"):
        await bench.engine.run(job)
    assert idle.length == parent.length == 30
    bench.engine.release(job.cache)
    await bench.feed(parent, [3], start=30)
    await bench.settle()
