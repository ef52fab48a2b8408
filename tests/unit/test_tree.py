"""Layouts of trees: every node is owned once, and behind what it needs."""

import random

import pytest

from outrider.tree import TreeLayout, chain_parents, children, depths


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
