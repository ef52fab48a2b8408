"""Recycling trees: best first, parents first, within one salt."""

import random

import pytest

from outrider.lookup.recycling import CHAIN_SHARE, SHARES, RecyclingTable, SaltedTables
from outrider.tree import TreeLayout


def scores(tree, chain_length: int, table: dict[int, tuple[int, ...]], last: int) -> list[float]:
    """Score every node by the rule: its rank's share of its parent's score."""
    found: list[float] = []
    for node, (token_id, parent) in enumerate(zip(tree.token_ids, tree.parents, strict=True)):
        above = 1.0 if parent < 0 else found[parent]
        if node < chain_length:
            found.append(above * CHAIN_SHARE)
            continue
        before = last if parent < 0 else tree.token_ids[parent]
        found.append(above * SHARES[table[before].index(token_id)])
    return found


@pytest.mark.parametrize("seed", range(40))
def test_trees_hold_the_best_nodes_and_no_twins(seed):
    rng = random.Random(seed)
    known = {i: tuple(rng.sample(range(20), 8)) for i in range(20) if rng.random() < 0.8}
    table = RecyclingTable()
    table.learn(list(known), list(known.values()))
    chain = [rng.randrange(20) for _ in range(rng.choice([0, 0, 3]))]
    num_nodes = rng.randint(1, 24)
    last = rng.randrange(20)
    tree = table.grow(last, num_nodes, chain=chain)
    assert len(tree.token_ids) <= num_nodes
    assert tree.token_ids[: len(chain)] == chain[:num_nodes]
    if tree.token_ids:
        TreeLayout.of(tree.parents)
    places = list(zip(tree.parents, tree.token_ids, strict=True))
    assert len(set(places)) == len(places)
    kept = scores(tree, len(chain), known, last)
    grown = kept[len(chain) :]
    assert grown == sorted(grown, reverse=True)
    # Whatever is not in the tree would have scored no better than what is.
    left = []
    for parent in range(-1, len(places)):
        before = last if parent < 0 else tree.token_ids[parent]
        above = 1.0 if parent < 0 else kept[parent]
        for share, token_id in zip(SHARES, known.get(before, ()), strict=False):
            if (parent, token_id) not in set(places):
                left.append(above * share)
    if grown and left and len(places) == num_nodes:
        assert max(left) <= min(grown) + 1e-12
    if len(places) < num_nodes:
        assert not left


def test_what_is_learned_last_replaces_what_was_known():
    table = RecyclingTable()
    table.learn([5], [[1, 2, 3]])
    table.learn([5, 6], [[9, 8], [7]])
    assert table.likeliest(5) == 9
    assert table.grow(5, 2).token_ids == [9, 8]
    assert table.likeliest(4) is None
    assert table.grow(4, 8).token_ids == []


def test_tables_never_cross_salts_and_are_bounded():
    tables = SaltedTables(max_salts=2)
    tables.of("a").learn([1], [[2]])
    assert tables.of("b").likeliest(1) is None
    assert tables.of("a").likeliest(1) == 2
    tables.of("c")
    assert len(tables) == 2
    assert tables.of("a").likeliest(1) == 2
    for salt in "de":
        tables.of(salt)
    assert tables.of("a").likeliest(1) is None


def test_leases_of_one_salt_share_a_table_that_is_still_empty():
    tables = SaltedTables()
    first, second = tables.of("a"), tables.of("a")
    assert first is second


def test_a_table_forgets_the_tokens_that_were_not_seen_for_longest():
    table = RecyclingTable(max_tokens=3)
    for token_id in (1, 2, 3, 1, 4):
        table.learn([token_id], [[token_id + 100]])
    assert len(table) == 3
    assert [table.likeliest(i) for i in (1, 2, 3, 4)] == [101, None, 103, 104]
