"""A node of a tree is computed as in a chain, to the last bit, and a path taken goes on as one."""

import asyncio
import random
from typing import Any

import pytest
import torch

from outrider.engine import JobInput, NoRoomForTree
from outrider.tree import TreeLayout
from tests.unit.engine.conftest import VOCABULARY, Bench, Feed, Make, build, random_ids


class Choose(Feed):
    """Feeds a tree and goes on with some nodes of it."""

    accepted: tuple[int, ...] = ()

    def settle(self, given: JobInput) -> None:
        assert given.tree is not None
        index = given.tree.path_through(self.accepted)
        if index:
            self.cache.take_branch(index - 1, given.base, given.path_ids[index])
        length = given.base + len(self.accepted)
        self.cache.truncate(length)
        self.cache.commit(length)


def choose(finished: list[Any]) -> None:
    for item in finished:
        item.job.logits.append(item.logits)
        item.job.done = True
        if isinstance(item.job, Choose):
            item.job.settle(item.job.given)


def ancestors(parents: tuple[int, ...], node: int) -> tuple[int, ...]:
    found = [node]
    while parents[found[-1]] >= 0:
        found.append(parents[found[-1]])
    return tuple(found[::-1])


def random_tree(seed: int, max_nodes: int = 12) -> tuple[tuple[int, ...], list[int]]:
    rng = random.Random(seed)
    parents = tuple(rng.randrange(-1, node) for node in range(rng.randint(1, max_nodes)))
    return parents, [rng.randrange(1, VOCABULARY) for _ in parents]


async def feed_tree(
    bench: Bench,
    cache: Any,
    ids: list[int],
    tree: tuple[tuple[int, ...], list[int]],
    *,
    start: int = 0,
    accepted: tuple[int, ...] = (),
) -> torch.Tensor:
    """Feed ids and a tree behind them; returns [1 + nodes, V]."""
    parents, nodes = tree
    base = start + len(ids)
    given = JobInput(start, [*ids, *nodes], len(nodes) + 1, base, TreeLayout.of(parents))
    job = Choose(cache, given)
    job.given, job.accepted = given, accepted  # type: ignore[attr-defined]
    await bench.engine.run(job)
    return torch.cat(job.logits)


@pytest.mark.parametrize("family", ["llama", "mistral", "gpt2", "gpt_oss", "gemma2", "deepseek_v3"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
async def test_every_node_is_as_in_a_chain(make_bench: Make, family: str, dtype: torch.dtype):
    bench = make_bench(build(family, dtype), choose)
    exact = bench.engine.report.row_invariant
    assert exact or dtype is torch.float32
    for base in (1, 7, 15, 16, 17, 30, 32, 33):
        ids = random_ids(base, seed=base)
        cache = bench.open(f"{base}")
        if base > 3:  # part of it is there already, the rest comes with the tree
            await bench.feed(cache, ids[: base - 2])
        parents, nodes = random_tree(base)
        kept = min(max(base - 2, 0), base - 1) if base > 3 else 0
        got = await feed_tree(bench, cache, ids[kept:], (parents, nodes), start=kept)
        chain = bench.open("chain")
        assert torch.allclose(got[0], (await bench.feed(chain, ids))[-1], atol=1e-4, rtol=1e-4)
        for node in range(len(nodes)):
            path = [nodes[each] for each in ancestors(parents, node)]
            expected = await bench.feed(chain, [*ids, *path], committed=base)
            if exact:
                assert torch.equal(got[node + 1], expected[-1]), (base, node, parents)
            else:
                assert torch.allclose(got[node + 1], expected[-1], atol=1e-4, rtol=1e-4)
    await bench.settle()


@pytest.mark.parametrize("seed", range(12))
async def test_a_path_taken_goes_on_as_a_chain(make_bench: Make, seed: int):
    """Trees one after the other, with any part of any path accepted."""
    rng = random.Random(seed)
    bench = make_bench(build("mistral", torch.bfloat16), choose)
    cache, chain = bench.open("tree"), bench.open("chain")
    known = random_ids(rng.randint(1, 40), seed=seed)
    fed = 0
    for turn in range(6):
        parents, nodes = random_tree(100 * seed + turn)
        layout = TreeLayout.of(parents)
        path = rng.choice(layout.paths).nodes
        accepted = path[: rng.randint(0, len(path))]
        await feed_tree(bench, cache, known[fed:], (parents, nodes), start=fed, accepted=accepted)
        fed = len(known) + len(accepted)
        known += [nodes[node] for node in accepted]
        assert list(cache.token_ids) == known
        assert cache.committed_length == fed
        known.append(rng.randrange(1, VOCABULARY))
        expected = await bench.feed(chain, known)
        got = await bench.feed(cache, known[fed:], start=fed)
        assert torch.equal(got[-1], expected[-1])
        fed = len(known)
        known.append(rng.randrange(1, VOCABULARY))
    await bench.settle()


@pytest.mark.parametrize("budget", [16, 24, 512])
async def test_many_trees_and_prompts_share_passes(make_bench: Make, budget: int):
    bench = make_bench(build("llama", torch.bfloat16), choose, max_tokens_per_pass=budget)
    alone = make_bench(build("llama", torch.bfloat16), choose)
    trees = [(random_ids(5 + 9 * n, seed=n), random_tree(n)) for n in range(8)]
    expected = [await feed_tree(alone, alone.open(f"{n}"), *each) for n, each in enumerate(trees)]
    prompt = random_ids(120, seed=77)
    *got, whole = await asyncio.gather(
        *(feed_tree(bench, bench.open(f"{n}"), *each) for n, each in enumerate(trees)),
        bench.feed(bench.open("prompt"), prompt),
    )
    for one, other in zip(got, expected, strict=True):
        assert torch.equal(one, other)
    assert torch.equal(whole, await alone.feed(alone.open("prompt"), prompt))
    await bench.settle()


async def test_a_pool_without_room_for_the_branches_says_so(make_bench: Make):
    bench = make_bench(build("llama"), choose, num_blocks=3)
    wide = ((-1,) * 6, [1, 2, 3, 4, 5, 6])
    with pytest.raises(NoRoomForTree):
        await feed_tree(bench, bench.open("wide"), random_ids(20), wide)
    await bench.settle()
    fine = await feed_tree(bench, bench.open("narrow"), random_ids(20), ((-1, -1), [1, 2]))
    assert len(fine) == 3
    await bench.settle()


async def test_no_sequence_loses_blocks_for_the_branches_of_another(make_bench: Make):
    bench = make_bench(build("llama"), choose, num_blocks=6)
    idle = bench.open("idle")
    await bench.feed(idle, random_ids(40), committed=0)
    wide = ((-1,) * 4, [1, 2, 3, 4])
    with pytest.raises(NoRoomForTree):
        await feed_tree(bench, bench.open("wide"), random_ids(20), wide)
    assert idle.length == 40
    assert len(await feed_tree(bench, bench.open("narrow"), random_ids(20), ((-1,), [1]))) == 2
    assert idle.length == 40
    await bench.settle()
