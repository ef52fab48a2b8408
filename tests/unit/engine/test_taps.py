"""Hidden states that a pass gives are the model's own, row by row, however it was fed."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

from outrider.engine import JobInput, LoadedModel, UnsupportedModel
from outrider.engine.cache import SequenceCache
from outrider.tree import TreeLayout
from tests.unit.engine.conftest import Bench, Feed, Make, build, random_ids

TAPS = (2, 0, 1)  # what the head reads, then what enters both layers


def keep(finished: list[Any]) -> None:
    for item in finished:
        item.job.logits.append(item.logits)
        item.job.finished = item
        item.job.done = True


async def tap(
    bench: Bench,
    cache: SequenceCache,
    ids: Sequence[int],
    *,
    start: int = 0,
    taps: tuple[int, ...] = TAPS,
    tree: tuple[int, ...] = (),
    committed: int | None = None,
) -> Any:
    """Feed ids, the last of them a tree; returns what the head was given."""
    layout = TreeLayout.of(tree) if tree else None
    end = start + len(ids) - len(tree) if committed is None else committed
    job = Feed(cache, JobInput(start, ids, len(tree) + 1, end, layout, taps))
    await bench.engine.run(job)
    return job.finished  # type: ignore[attr-defined]


def plain_states(model: LoadedModel, ids: Sequence[int]) -> torch.Tensor:
    """What transformers says, [len(ids), taps, hidden] float32; before the engine starts."""
    module: Any = model.module
    module.set_attn_implementation("eager")
    with torch.inference_mode():
        states = module(
            torch.tensor([ids]), use_cache=False, output_hidden_states=True
        ).hidden_states
    return torch.stack([states[layer][0].float() for layer in TAPS], dim=1)


@pytest.mark.parametrize(
    "family", ["llama", "qwen3", "gemma2", "gpt2", "gpt_oss", "deepseek_v3", "mistral"]
)
async def test_they_are_what_transformers_calls_hidden_states(make_bench: Make, family: str):
    model, ids = build(family), random_ids(40)
    expected = plain_states(model, ids)
    bench = make_bench(model, keep)
    assert bench.engine.max_tap == 2
    finished = await tap(bench, bench.open(), ids)
    assert finished.first_position == 0
    assert finished.features.dtype is torch.bfloat16
    assert finished.features.shape == (40, 3, 48)
    assert torch.allclose(finished.features.float(), expected, rtol=2**-7, atol=2e-3)


@pytest.mark.parametrize("chunk", [1, 7, 16])
async def test_chunks_of_a_prompt_give_the_same_bits(make_bench: Make, chunk: int):
    whole, ids = make_bench(build("llama", torch.bfloat16), keep), random_ids(60)
    expected = (await tap(whole, whole.open(), ids)).features
    bench = make_bench(build("llama", torch.bfloat16), keep, max_tokens_per_pass=chunk)
    assert torch.equal((await tap(bench, bench.open(), ids)).features, expected)


async def test_nodes_of_a_tree_are_as_in_a_chain(make_bench: Make):
    """In node order, whatever the order of the paths."""
    bench, ids = make_bench(build("llama", torch.bfloat16), keep), random_ids(19)
    parents, nodes = (-1, -1, 0, 1, 1, 2, 0), [5, 9, 4, 7, 8, 3, 2]
    got = (await tap(bench, bench.open("tree"), [*ids, *nodes], tree=parents)).features
    assert len(got) == 19 + 7
    for node in range(len(nodes)):
        path = [node]
        while parents[path[-1]] >= 0:
            path.append(parents[path[-1]])
        chain = [*ids, *(nodes[each] for each in path[::-1])]
        expected = (await tap(bench, bench.open(f"{node}"), chain, committed=19)).features
        assert torch.equal(got[:19], expected[:19])
        assert torch.equal(got[19 + node], expected[-1])


async def test_rows_of_the_prefix_cache_are_not_there(make_bench: Make):
    bench, ids = make_bench(build("llama", torch.bfloat16), keep), random_ids(50)
    whole = await tap(bench, bench.open(), ids)
    second = await tap(bench, bench.open(), ids)
    assert second.first_position == 48
    assert torch.equal(second.features, whole.features[48:])
    stranger = await tap(bench, bench.open("other"), ids)
    assert (stranger.first_position, len(stranger.features)) == (0, 50)


async def test_only_who_asks_gets_any_and_nobody_else_notices(make_bench: Make):
    bench = make_bench(build("llama", torch.bfloat16), keep)
    ids = [random_ids(20 + n, seed=n) for n in range(4)]
    wishes: list[tuple[int, ...]] = [(), (1,), (2, 0), ()]
    alone = [await tap(bench, bench.open(f"{n}"), each, taps=()) for n, each in enumerate(ids)]
    together = await asyncio.gather(
        *(
            tap(bench, bench.open(f"again {n}"), each, taps=taps)
            for n, (each, taps) in enumerate(zip(ids, wishes, strict=True))
        )
    )
    for one, other, taps, each in zip(alone, together, wishes, ids, strict=True):
        assert torch.equal(one.logits, other.logits)
        assert one.features is None
        if taps:
            assert other.features.shape == (len(each), len(taps), 48)
            full = await tap(bench, bench.open(f"full {taps}"), each)
            assert torch.equal(other.features, full.features[:, [TAPS.index(t) for t in taps]])
        else:
            assert other.features is None


async def test_a_layer_that_is_not_there_fails_its_own_job_only(make_bench: Make):
    bench = make_bench(build("llama"), keep)
    for layer in (3, -1):
        with pytest.raises(ValueError, match=rf"layer {layer} is not in \[0, 2\]"):
            await tap(bench, bench.open(), random_ids(9), taps=(layer,))
    assert (await tap(bench, bench.open(), random_ids(9))).features is not None


async def test_a_model_whose_layers_are_not_found_says_so(make_bench: Make):
    model = build("llama")
    module: Any = model.module
    module.get_decoder = lambda: nn.Module()
    bench = make_bench(model, keep)
    assert bench.engine.max_tap is None
    with pytest.raises(UnsupportedModel, match="LlamaForCausalLM: its decoder layers"):
        await tap(bench, bench.open(), random_ids(9))
    assert (await tap(bench, bench.open(), random_ids(9), taps=())).features is None
