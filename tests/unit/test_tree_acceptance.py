"""Accepting a path of a tree leaves the target's law as it is: by enumeration, and by parity."""

import itertools
from collections import defaultdict
from fractions import Fraction
from functools import cache
from random import Random

import pytest
import torch

from outrider.acceptance import ChainRequest, accepted_path, verify_batch, verify_chain
from outrider.distribution import RowSampling
from outrider.proposed import Proposed
from outrider.sampling import Mode
from outrider.tree import TreeLayout

VOCAB_SIZE = 3
LENGTH = 3  # tokens of the enumerated outputs


@cache
def law(prefix: tuple[int, ...]) -> list[Fraction]:
    """A target law that depends on all of its prefix."""
    rng = Random(f"{prefix}")
    weights = [rng.randint(0, 5) for _ in range(VOCAB_SIZE)]
    if not any(weights):
        weights[0] = 1
    return [Fraction(weight, sum(weights)) for weight in weights]


def target_law() -> dict[tuple[int, ...], Fraction]:
    probs = {(): Fraction(1)}
    for _ in range(LENGTH):
        probs = {
            (*prefix, token): prob * p
            for prefix, prob in probs.items()
            for token, p in enumerate(law(prefix))
            if p
        }
    return probs


def tree_at(prefix: tuple[int, ...], seed: int) -> Proposed:
    """A tree that is a function of the prefix; twins, hopeless tokens and probes are welcome."""
    rng = Random(f"{seed}{prefix}")
    parents = tuple(rng.randrange(-1, node) for node in range(rng.randint(0, 3)))
    token_ids = tuple(rng.randrange(VOCAB_SIZE) for _ in parents)
    probes = tuple(rng.random() < 0.25 for _ in parents)
    return Proposed(token_ids, parents=parents, probes=probes)


@cache
def outputs(prefix: tuple[int, ...], seed: int) -> dict[tuple[int, ...], Fraction]:
    """The law of what cycles with trees commit, up to the enumerated length."""
    if len(prefix) >= LENGTH:
        return {prefix[:LENGTH]: Fraction(1)}
    proposed = tree_at(prefix, seed)
    contexts = [prefix]
    for node, parent in enumerate(proposed.parents):
        contexts.append((*contexts[parent + 1], proposed.token_ids[node]))
    found: dict[tuple[int, ...], Fraction] = defaultdict(Fraction)
    # Every row draws by itself.
    for drawn in itertools.product(range(VOCAB_SIZE), repeat=len(contexts)):
        mass = Fraction(1)
        for context, token in zip(contexts, drawn, strict=True):
            mass *= law(context)[token]
        if not mass:
            continue
        path = accepted_path(proposed, drawn)
        last = path[-1] + 1 if path else 0
        committed = (*prefix, *(proposed.token_ids[n] for n in path), drawn[last])
        for output, prob in outputs(committed, seed).items():
            found[output] += mass * prob
    return found


@pytest.mark.parametrize("seed", range(12))
def test_cycles_with_trees_give_the_target_law_exactly(seed):
    assert outputs((), seed) == target_law()


def test_a_walk_that_keeps_what_was_not_drawn_changes_the_law(monkeypatch):
    honest = accepted_path

    def greedy_walk(proposed: Proposed, drawn):
        path = honest(proposed, drawn)
        return path or tuple(range(min(1, len(proposed.token_ids))))

    monkeypatch.setitem(globals(), "accepted_path", greedy_walk)
    outputs.cache_clear()
    assert all(outputs((), seed) != target_law() for seed in range(3))
    outputs.cache_clear()


@pytest.mark.parametrize("mode", [Mode.GREEDY, Mode.COUPLED, Mode.RATIO])
def test_each_tree_is_decided_as_it_would_be_alone(mode):
    rng, generator = Random(1), torch.Generator().manual_seed(1)
    requests, parts = [], []
    for key in range(150):
        parents = tuple(rng.randrange(-1, node) for node in range(rng.randint(0, 6)))
        proposed = Proposed(tuple(rng.randrange(5) for _ in parents), parents=parents)
        rows = (RowSampling(top_k=3),) * (len(parents) + 1)
        if mode is Mode.RATIO and not parents:
            continue
        requests.append(ChainRequest(proposed, rows, mode, key, 7, cycle=key))
        parts.append(torch.randn(len(rows), 8, generator=generator))
    together = verify_batch(requests, torch.cat(parts), vocab_size=8)
    for request, logits, decision in zip(requests, parts, together, strict=True):
        assert decision == verify_chain(logits, request, vocab_size=8)
        nodes = decision.accepted_nodes
        if nodes:
            TreeLayout.of(request.proposed.parents).path_through(nodes)
    lengths = {len(decision.accepted_nodes) for decision in together}
    assert lengths >= {0, 1}
    assert max(lengths) >= 2


@pytest.mark.parametrize("mode", [Mode.GREEDY, Mode.COUPLED])
def test_a_tree_keeps_what_its_best_chain_keeps(mode):
    """Same logits for same prefixes: a tree that holds a chain keeps at least as much of it."""
    rng = Random(2)
    kept = 0
    for key in range(60):
        tables: dict[tuple[int, ...], torch.Tensor] = {}

        def logits(context: tuple[int, ...], tables=tables, key=key) -> torch.Tensor:
            seed = abs(hash((key, context))) % 2**31
            return tables.setdefault(
                context, torch.randn(6, generator=torch.Generator().manual_seed(seed))
            )

        parents = tuple(rng.randrange(-1, node) for node in range(8))
        proposed = Proposed(tuple(rng.randrange(6) for _ in parents), parents=parents)
        contexts: list[tuple[int, ...]] = [()]
        for node, parent in enumerate(parents):
            contexts.append((*contexts[parent + 1], proposed.token_ids[node]))
        rows = (RowSampling(),) * 9
        table = torch.stack([logits(context) for context in contexts])
        made = verify_chain(table, ChainRequest(proposed, rows, mode, key, 3), vocab_size=6)
        best = 0
        for path in TreeLayout.of(parents).paths:
            chain = Proposed(tuple(proposed.token_ids[n] for n in path.nodes))
            part = torch.stack([logits(chain.token_ids[:n]) for n in range(len(path.nodes) + 1)])
            request = ChainRequest(chain, rows[: len(part)], mode, key, 3)
            single = verify_chain(part, request, vocab_size=6)
            best = max(best, single.num_accepted)
            output = [*chain.token_ids[: single.num_accepted], single.next_token_id]
            mine = [*(proposed.token_ids[n] for n in made.accepted_nodes), made.next_token_id]
            shorter = min(len(output), len(mine))
            assert output[:shorter] == mine[:shorter], "both are the target's own tokens"
        assert made.num_accepted == best
        kept += best
    assert kept > 20


def test_a_probe_is_never_accepted_nor_what_hangs_on_it():
    proposed = Proposed((4, 5, 4), parents=(-1, 0, -1), probes=(True, False, False))
    assert accepted_path(proposed, [4, 5, 1, 2]) == (2,)
    proposed = Proposed((4, 5), parents=(-1, 0), probes=(True, False))
    assert accepted_path(proposed, [4, 5, 1]) == ()
