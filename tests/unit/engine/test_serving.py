"""Many jobs at once, a pool that is too small, faults and cancellation."""

import asyncio

import pytest
import torch

from outrider.engine import CacheTooShort, JobInput, LoadedModel, OutOfBlocks
from outrider.errors import InvalidField, Unavailable
from tests.unit.engine.conftest import Feed, Make, build, collect, random_ids


@pytest.fixture
def model() -> LoadedModel:
    return build("llama", torch.bfloat16)


async def test_many_jobs_share_passes_and_equal_single_runs(
    model: LoadedModel, make_bench: Make
) -> None:
    bench = make_bench(model, gather_ms=50.0, gather_fraction=1.0)
    sequences = [random_ids(10 + 3 * n, seed=n) for n in range(16)]
    expected = [await bench.feed(bench.open(f"{n}"), ids) for n, ids in enumerate(sequences)]

    async def stream(n: int, ids: list[int]) -> torch.Tensor:
        cache, parts = bench.open(f"stream {n}"), []
        parts.append(await bench.feed(cache, ids[:5]))
        for at in range(5, len(ids), 4):
            parts.append(await bench.feed(cache, ids[at : at + 4], start=at))
        return torch.cat(parts)

    before = bench.engine.stats().num_passes
    got = await asyncio.gather(*(stream(n, ids) for n, ids in enumerate(sequences)))
    assert all(torch.equal(a, b) for a, b in zip(got, expected, strict=True))
    num_jobs = sum(1 + -(-(len(ids) - 5) // 4) for ids in sequences)
    assert bench.engine.stats().num_passes - before < num_jobs / 2


async def test_a_head_may_ask_for_more(model: LoadedModel, make_bench: Make) -> None:
    bench, ids = make_bench(model), random_ids(20)
    cache = bench.open()
    inputs = [JobInput(0, ids[:10], 1, 10), *(JobInput(n, [ids[n]], 1, n) for n in range(10, 20))]
    job = Feed(cache, *inputs)
    await bench.engine.run(job)
    expected = await bench.feed(bench.open("fresh"), ids)
    assert torch.equal(torch.cat(job.logits), expected[9:])


async def test_a_prompt_does_not_stall_running_streams(
    model: LoadedModel, make_bench: Make
) -> None:
    bench = make_bench(model, prefill_chunk_tokens=16, max_decode_tokens=8)
    cache, order = bench.open("stream"), []
    await bench.feed(cache, random_ids(8))

    async def prompt() -> None:
        await bench.feed(bench.open("prompt"), random_ids(400), rows=1)
        order.append("prompt")

    async def stream() -> None:
        steps = [JobInput(8 + n, [n + 1], 1, 9 + n) for n in range(10)]
        await bench.engine.run(Feed(cache, *steps))
        order.append("stream")

    await asyncio.gather(prompt(), stream())
    assert order == ["stream", "prompt"]


async def test_idle_leases_are_preempted_and_their_next_job_hears_it(
    model: LoadedModel, make_bench: Make
) -> None:
    bench = make_bench(model, num_blocks=8)
    old, ids = bench.open("old"), random_ids(60)
    await bench.feed(old, ids)
    await bench.feed(bench.open("new"), random_ids(100, seed=1))
    assert old.length == 0
    assert bench.engine.stats().num_preemptions == 1
    with pytest.raises(CacheTooShort) as caught:
        await bench.feed(old, [1, 2], start=60)
    assert caught.value.length == 0
    await bench.feed(old, [*ids, 1, 2])  # the whole sequence heals it
    await bench.settle()


async def test_a_full_pool_queues_and_everyone_gets_through(
    model: LoadedModel, make_bench: Make
) -> None:
    bench = make_bench(model, num_blocks=6, max_tokens_per_pass=32)
    sequences = [random_ids(60, seed=n) for n in range(6)]
    caches = [bench.open(f"{n}") for n in range(6)]

    async def one(n: int) -> torch.Tensor:
        # two inputs, so that jobs hold blocks while they wait for more
        steps = (JobInput(0, sequences[n][:40], 1, 40), JobInput(0, sequences[n], 1, 60))
        job = Feed(caches[n], *steps)
        await bench.engine.run(job)
        return job.logits[-1]

    got = await asyncio.wait_for(asyncio.gather(*(one(n) for n in range(6))), 20)
    for n in range(6):
        expected = await bench.feed(bench.open("fresh"), sequences[n], rows=1)
        assert torch.equal(got[n], expected)
    await bench.settle()


async def test_a_job_that_cannot_fit_fails_alone(model: LoadedModel, make_bench: Make) -> None:
    bench = make_bench(model, num_blocks=4)
    with pytest.raises(OutOfBlocks):
        await bench.feed(bench.open(), random_ids(65))
    with pytest.raises(InvalidField, match="context length 512"):
        await bench.feed(bench.open(), random_ids(513))
    await bench.feed(bench.open(), random_ids(64))


async def test_a_fault_hits_its_culprit_only(model: LoadedModel, make_bench: Make) -> None:
    bench = make_bench(model)
    ids = random_ids(20)
    jobs = [bench.feed(bench.open(f"{n}"), ids) for n in range(3)]
    bad = bench.feed(bench.open("bad"), [1, 2, 10**6])  # no such embedding
    *good, fault = await asyncio.gather(*jobs, bad, return_exceptions=True)
    assert isinstance(fault, IndexError)
    assert all(isinstance(x, torch.Tensor) and torch.equal(x, good[0]) for x in good)
    await bench.feed(bench.open(), ids)
    await bench.settle()


async def test_a_faulty_head_or_start_hits_its_job_only(
    model: LoadedModel, make_bench: Make
) -> None:
    def head(finished: list) -> None:
        for item in finished:
            if item.job.priority == 7:
                raise ZeroDivisionError
        collect(finished)

    bench = make_bench(model, head)

    def job(n: int) -> Feed:
        return Feed(bench.open(f"{n}"), JobInput(0, [1, 2, 3], 1, 3), priority=n)

    outcomes = await asyncio.gather(
        *(bench.engine.run(job(n)) for n in (0, 7, 1)),
        bench.engine.run(Feed(bench.open())),  # its start raises IndexError
        return_exceptions=True,
    )
    assert [type(x) for x in outcomes] == [type(None), ZeroDivisionError, type(None), IndexError]


async def test_cancel_and_release_free_the_blocks(model: LoadedModel, make_bench: Make) -> None:
    bench = make_bench(model, max_tokens_per_pass=4)
    cache = bench.open()
    task = asyncio.create_task(bench.feed(cache, random_ids(500)))
    await bench.passes(2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    passes = bench.engine.stats().num_passes
    bench.engine.release(cache)
    await bench.settle()
    assert bench.engine.stats().num_passes <= passes + 2
    assert bench.engine.stats().num_blocks_used == 0
    with pytest.raises(CacheTooShort):
        await bench.feed(cache, [1, 2], start=0)


async def test_close_fails_what_is_left(model: LoadedModel, make_bench: Make) -> None:
    bench = make_bench(model, max_tokens_per_pass=2)
    task = asyncio.create_task(bench.feed(bench.open(), random_ids(500)))
    await bench.passes(2)
    await bench.engine.close()
    with pytest.raises(Unavailable):
        await task
    with pytest.raises(Unavailable):
        await bench.feed(bench.open(), [1])
