"""Rollback, chunks, shared prefixes and scattered blocks leave no trace in the logits."""

import asyncio

import pytest
import torch

from outrider.engine import LoadedModel
from tests.unit.engine.conftest import Make, build, random_ids


@pytest.fixture
def model() -> LoadedModel:
    return build("mistral", torch.bfloat16)  # a sliding window of 7


async def test_rejected_rows_leave_no_trace(model: LoadedModel, make_bench: Make) -> None:
    bench, ids = make_bench(model), random_ids(40)
    expected = await bench.feed(bench.open("other"), ids)
    cache = bench.open()
    await bench.feed(cache, ids[:25])
    await bench.feed(cache, random_ids(12, seed=5), start=25, committed=25)
    assert (cache.length, cache.committed_length) == (37, 25)
    got = await bench.feed(cache, ids[25:], start=25)
    assert torch.equal(got, expected[25:])


async def test_equal_rows_stay_and_only_the_rest_is_fed(
    model: LoadedModel, make_bench: Make
) -> None:
    bench, ids = make_bench(model), random_ids(30)
    cache = bench.open()
    await bench.feed(cache, ids)
    rows = bench.engine.stats().num_rows
    await bench.feed(cache, [*ids[20:], 3, 4], start=20, rows=2)
    assert bench.engine.stats().num_rows == rows + 2
    await bench.feed(cache, [*ids, 3, 4], rows=0)  # all cached: still one row is fed
    assert bench.engine.stats().num_rows == rows + 3


@pytest.mark.parametrize("chunk", [1, 5, 16, 37])
async def test_chunks_equal_the_whole(model: LoadedModel, make_bench: Make, chunk: int) -> None:
    ids = random_ids(90)
    whole = make_bench(build("mistral", torch.bfloat16))
    expected = await whole.feed(whole.open(), ids)
    bench = make_bench(model, max_tokens_per_pass=chunk)
    assert torch.equal(await bench.feed(bench.open(), ids), expected)
    stats = bench.engine.stats()
    assert stats.num_passes == sum(stats.passes_by_rows.values()) == -(-len(ids) // chunk)
    assert stats.num_rows == sum(rows * n for rows, n in stats.passes_by_rows.items()) == len(ids)
    assert stats.passes_by_rows[chunk] == len(ids) // chunk
    assert 0 < stats.last_pass_ms / 1e3 <= stats.compute_s


async def test_committed_prefixes_are_shared_within_a_salt(
    model: LoadedModel, make_bench: Make
) -> None:
    bench, ids = make_bench(model), random_ids(50)
    first = bench.open("a")
    expected = await bench.feed(first, ids, committed=40)
    assert bench.engine.stats().num_prefix_hit_tokens == 0
    stranger = bench.open("b")
    await bench.feed(stranger, ids)
    assert bench.engine.stats().num_prefix_hit_tokens == 0
    second = bench.open("a")
    got = await bench.feed(second, ids, rows=4)
    # 40 committed rows are two full blocks; the third has draft rows in it
    assert bench.engine.stats().num_prefix_hit_tokens == 32
    assert list(second.table[:2]) == list(first.table[:2])
    assert torch.equal(got, expected[-4:])
    for cache in (first, stranger, second):
        bench.engine.release(cache)
    await bench.settle()


async def test_writing_into_a_shared_block_copies_it(model: LoadedModel, make_bench: Make) -> None:
    bench, ids = make_bench(model), random_ids(48)
    first, second = bench.open(), bench.open()
    await bench.feed(first, ids)
    await bench.feed(second, ids, rows=1)
    shared = first.table[1]
    assert second.table[1] == shared
    other = [*ids[:20], *random_ids(20, seed=9)]
    got = await bench.feed(second, other[20:], start=20)
    assert second.table[1] != shared
    expected = await bench.feed(bench.open("fresh"), other)
    assert torch.equal(got, expected[20:])
    again = await bench.feed(first, ids[30:], start=30)  # the first owner's rows are intact
    assert torch.equal(again, (await bench.feed(bench.open("fresh"), ids))[30:])


async def test_scattered_blocks_give_the_same_bits(model: LoadedModel, make_bench: Make) -> None:
    bench = make_bench(model, num_blocks=160)
    sequences = [random_ids(20 + n, seed=n) for n in range(20)]
    caches = [bench.open(f"{n}") for n in range(20)]
    expected = await asyncio.gather(
        *(bench.feed(c, ids) for c, ids in zip(caches, sequences, strict=True))
    )
    for cache in caches[::2]:
        bench.engine.release(cache)
    await bench.settle()
    again = [bench.open(f"again {n}") for n in range(10)]
    got = await asyncio.gather(
        *(bench.feed(c, ids) for c, ids in zip(again, sequences[::2], strict=True))
    )
    for one, two in zip(got, expected[::2], strict=True):
        assert torch.equal(one, two)
    await bench.settle()


@pytest.mark.parametrize("family", ["llama", "gemma2"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
async def test_a_row_has_the_same_bits_alone_and_in_a_crowd(
    family: str, dtype: torch.dtype, make_bench: Make
) -> None:
    # Real models have widths of whole vectors. Of others torch computes what is left over behind
    # two of its widest by another formula, so that a row of Gemma depends on its place there.
    bench = make_bench(build(family, dtype, intermediate_size=96))
    if bench.engine.report.kernels == "torch":
        pytest.skip("no C compiler here")
    assert bench.engine.report.row_invariant
    ids = random_ids(60)
    cache = bench.open("alone")
    alone = torch.cat([await bench.feed(cache, [t], start=n) for n, t in enumerate(ids)])
    lengths = (60, 1, 2, 33, 47, 8)
    crowd = await asyncio.gather(
        *(bench.feed(bench.open(f"{n}"), ids[:length]) for n, length in enumerate(lengths))
    )
    for length, got in zip(lengths, crowd, strict=True):
        assert torch.equal(got, alone[:length])
