"""Layouts of trees: every node is owned once, and behind what it needs."""

import random

import pytest

from outrider.tree import GrowingTree, TreeLayout, chain_parents, children, depths, merge


def random_parents(rng: random.Random, num_nodes: int) -> list[int]:
    return [rng.randrange(-1, node) for node in range(num_nodes)]


@pytest.mark.parametrize("seed", range(50))
def test_paths_cover_the_tree_and_share_what_earlier_ones_own(seed):
    rng = random.Random(seed)
    parents = random_parents(rng, rng.randint(1, 20))
    layout = TreeLayout.of(parents)
    below = children(parents)
    leaves = [node for node in range(len(parents)) if not below[node + 1]]
    assert sorted(path.nodes[-1] for path in layout.paths) == leaves
    owned = [node for path in layout.paths for node in path.owned]
    assert sorted(owned) == list(range(len(parents)))
    seen: set[int] = set()
    for path in layout.paths:
        assert path.owned
        assert set(path.nodes[: path.num_shared]) <= seen
        seen |= set(path.nodes)
        for parent, node in zip((-1, *path.nodes), path.nodes, strict=False):
            assert parents[node] == parent
        assert [depths(parents)[node] for node in path.nodes] == list(range(1, len(path.nodes) + 1))
        for length in range(len(path.nodes) + 1):
            index = layout.path_through(path.nodes[:length])
            assert layout.paths[index].nodes[:length] == path.nodes[:length]
    first = layout.paths[0].nodes
    assert all(
        below[parent + 1][0] == node for parent, node in zip((-1, *first), first, strict=False)
    )


def test_a_chain_has_one_path():
    layout = TreeLayout.of(chain_parents(4))
    assert [path.nodes for path in layout.paths] == [(0, 1, 2, 3)]


def test_what_is_no_tree_is_refused():
    with pytest.raises(ValueError, match=r"parents\[1\]: 1 is not an earlier node"):
        TreeLayout.of([-1, 1])
    with pytest.raises(ValueError, match="no path"):
        TreeLayout.of([-1, 0, 0]).path_through([0, 2, 1])


def test_a_merged_tree_holds_the_likeliest_nodes_of_both():
    one, other = GrowingTree(), GrowingTree()
    one.add(7, one.add(5, -1, 0.6), 0.5)
    other.add(5, -1, 0.3)
    other.add(9, other.add(8, -1, 0.4), 0.35)
    other.add(6, 0, 0.2)
    whole = merge([one, other], 10)
    assert list(zip(whole.token_ids, whole.parents, whole.scores, strict=True)) == [
        (5, -1, 0.6),
        (7, 0, 0.5),
        (8, -1, 0.4),
        (9, 2, 0.35),
        (6, 0, 0.2),
    ]
    assert merge([one, other], 3).token_ids == [5, 7, 8]
    assert not len(merge([], 3))


@pytest.mark.parametrize("seed", range(20))
def test_what_is_merged_is_a_tree_without_twins(seed):
    rng = random.Random(seed)
    trees = []
    for _ in range(3):
        tree = GrowingTree()
        for node in range(rng.randint(0, 12)):
            parent = rng.randrange(-1, node)
            above = 1.0 if parent < 0 else tree.scores[parent]
            tree.add(rng.randrange(4), parent, above * rng.choice([1.0, 0.5, 0.3]))
        trees.append(tree)
    merged = merge(trees, rng.randint(1, 20))
    TreeLayout.of(merged.parents)
    places = list(zip(merged.parents, merged.token_ids, strict=True))
    assert len(set(places)) == len(places)
    assert merged.scores == sorted(merged.scores, reverse=True)
