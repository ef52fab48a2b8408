"""Trees of draft tokens: parents, depths, and the paths that an engine verifies.

A tree is written as one parent for each node, parents before children, -1 for a child of the last
committed token. A chain is the tree whose parents are -1, 0, 1, ...
"""

from collections.abc import Sequence
from dataclasses import dataclass, field


def chain_parents(num_nodes: int) -> tuple[int, ...]:
    """Return the parents of a chain."""
    return tuple(range(-1, num_nodes - 1))


def depths(parents: Sequence[int]) -> list[int]:
    """Return every node's distance from the last committed token; 1 for its children."""
    found: list[int] = []
    for parent in parents:
        found.append(1 if parent < 0 else found[parent] + 1)
    return found


def children(parents: Sequence[int]) -> list[list[int]]:
    """Return the children of the last committed token, then those of every node; ascending."""
    found: list[list[int]] = [[] for _ in range(len(parents) + 1)]
    for node, parent in enumerate(parents):
        found[parent + 1].append(node)
    return found


@dataclass(frozen=True, slots=True)
class Path:
    """A way from the last committed token to a leaf.

    ``num_shared`` of its first nodes lie on an earlier path too, which owns them.
    """

    nodes: tuple[int, ...]
    num_shared: int

    @property
    def owned(self) -> tuple[int, ...]:
        """The nodes that are on no earlier path."""
        return self.nodes[self.num_shared :]


@dataclass(frozen=True, slots=True)
class TreeLayout:
    """All paths of a tree, the one along first children first; every node is owned once."""

    parents: tuple[int, ...]
    paths: tuple[Path, ...]

    @classmethod
    def of(cls, parents: Sequence[int]) -> "TreeLayout":
        """Lay a tree out.

        Raises: ValueError if a parent is not an earlier node or -1.
        """
        for node, parent in enumerate(parents):
            if not -1 <= parent < node:
                raise ValueError(f"parents[{node}]: {parent} is not an earlier node or -1")
        below = children(parents)
        paths: list[Path] = []
        # Depth first, so that a path owns all nodes below the one where it leaves the last path.
        waiting: list[tuple[tuple[int, ...], int]] = [((node,), 0) for node in below[0][::-1]]
        while waiting:
            nodes, num_shared = waiting.pop()
            while below[nodes[-1] + 1]:
                first, *others = below[nodes[-1] + 1]
                waiting += [((*nodes, node), len(nodes)) for node in others[::-1]]
                nodes = (*nodes, first)
            paths.append(Path(nodes, num_shared))
        return cls(tuple(parents), tuple(paths))

    def path_through(self, nodes: Sequence[int]) -> int:
        """Return the index of the first path that begins with these nodes.

        Raises: ValueError if there is none.
        """
        wanted = tuple(nodes)
        for index, path in enumerate(self.paths):
            if path.nodes[: len(wanted)] == wanted:
                return index
        raise ValueError(f"no path of the tree begins with nodes {wanted}")


@dataclass(slots=True)
class GrowingTree:
    """Draft tokens in the order of their expected use; a node's parent comes before it."""

    token_ids: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    """How likely each node is to be accepted; never more than its parent's."""

    def __len__(self) -> int:
        return len(self.token_ids)

    def add(self, token_id: int, parent: int, score: float) -> int:
        """Append a node; return its index."""
        self.token_ids.append(token_id)
        self.parents.append(parent)
        self.scores.append(score)
        return len(self.token_ids) - 1

    def way(self, node: int) -> list[int]:
        """Return the tokens from the root to a node; none for -1."""
        found: list[int] = []
        while node >= 0:
            found.append(self.token_ids[node])
            node = self.parents[node]
        return found[::-1]

    def best(self, num_nodes: int) -> "GrowingTree":
        """Return the likeliest nodes; of equal scores a parent stays before its children."""
        kept = sorted(range(len(self)), key=lambda node: -self.scores[node])[:num_nodes]
        index = {-1: -1}
        found = GrowingTree()
        for node in kept:
            parent = index[self.parents[node]]
            index[node] = found.add(self.token_ids[node], parent, self.scores[node])
        return found


def merge(trees: Sequence[GrowingTree], num_nodes: int) -> GrowingTree:
    """Return the likeliest nodes of several trees; a node of two counts by its higher score."""
    scores: dict[tuple[int, ...], float] = {}
    for tree in trees:
        ways: list[tuple[int, ...]] = [()]
        for token_id, parent, score in zip(tree.token_ids, tree.parents, tree.scores, strict=True):
            way = (*ways[parent + 1], token_id)
            ways.append(way)
            scores[way] = max(score, scores.get(way, 0.0))
    merged = GrowingTree()
    index: dict[tuple[int, ...], int] = {(): -1}
    # Stable, and a way is found after its beginning: of equal scores the parent stays first.
    for way in sorted(scores, key=lambda way: (-scores[way], len(way)))[:num_nodes]:
        index[way] = merged.add(way[-1], index[way[:-1]], scores[way])
    return merged
