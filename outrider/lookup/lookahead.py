"""Lookahead decoding: n-grams that the target itself makes while it verifies other things.

Paper: Fu et al. 2024, arXiv:2402.02057. The window is a tree: a chain of W columns, and behind each
column what the target said there in earlier steps. One more token of every column comes back with
each verification; what has come down a column is an n-gram for the pool.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from outrider.tree import GrowingTree

NGRAM = 4  # tokens of an n-gram, its first one included
MAX_GUESSES = 8  # n-grams kept behind one token, the latest
MAX_TOKENS = 4096  # tokens that the pool knows n-grams of


@dataclass(slots=True)
class NgramPool:
    """What followed a token in the window, latest first; the tokens used longest ago are
    forgotten."""

    _tails: OrderedDict[int, OrderedDict[tuple[int, ...], None]] = field(
        default_factory=OrderedDict
    )

    def add(self, ngram: Sequence[int]) -> None:
        """Remember an n-gram under its first token."""
        first, tail = ngram[0], tuple(ngram[1:])
        tails = self._tails.pop(first, None) or OrderedDict()
        tails.pop(tail, None)
        tails[tail] = None
        while len(tails) > MAX_GUESSES:
            tails.popitem(last=False)
        self._tails[first] = tails
        while len(self._tails) > MAX_TOKENS:
            self._tails.popitem(last=False)

    def tails(self, token_id: int) -> list[tuple[int, ...]]:
        """Return what is known to follow a token, latest first."""
        return list(self._tails.get(token_id, ()))[::-1]

    def __len__(self) -> int:
        return len(self._tails)


@dataclass(frozen=True, slots=True)
class Probing:
    """A draft with probe nodes, and where the newest token of each column is among its nodes."""

    token_ids: tuple[int, ...]
    parents: tuple[int, ...]
    probes: tuple[bool, ...]
    newest: tuple[int, ...]


@dataclass(slots=True)
class Lookahead:
    """One sequence's window and pool."""

    pool: NgramPool = field(default_factory=NgramPool)
    _levels: list[list[int]] = field(default_factory=list)
    """[level][column]: what stands in the window, the oldest level first."""

    def draft(self, token_ids: Sequence[int], num_nodes: int) -> Probing:
        """Return guesses behind the last of the ids, then the window.

        Of the nodes half or less are the window's, so that guesses are verified as well.
        """
        depth = NGRAM - 1
        if num_nodes < 2 * depth:  # no room for a column and a guess
            return Probing((), (), (), ())
        num_columns = max(1, num_nodes // 2 // depth)
        tree = self._guesses(token_ids[-1], max(0, num_nodes - num_columns * depth))
        num_guessed = len(tree)
        if len(self._levels) == 0 or len(self._levels[0]) != num_columns:
            # Any tokens will do for a beginning; those that were said here do better than others.
            self._levels = [[token_ids[-1 - at % len(token_ids)] for at in range(num_columns)]]
        parent, newest = -1, []
        room = num_nodes - num_guessed
        columns: list[int] = []
        for token_id in self._levels[0][:room]:
            parent = tree.add(token_id, parent, 0.0)
            columns.append(parent)
        for column, node in enumerate(columns):
            for level in self._levels[1:]:
                if len(tree) < num_nodes:
                    node = tree.add(level[column], node, 0.0)
            newest.append(node)
        is_whole = len(tree) == num_guessed + len(self._levels) * num_columns
        return Probing(
            token_ids=tuple(tree.token_ids),
            parents=tuple(tree.parents),
            probes=tuple(node >= num_guessed for node in range(len(tree))),
            newest=tuple(newest) if is_whole else (),
        )

    def learn(self, probing: Probing, said: Sequence[int]) -> None:
        """Take in the target's first choice behind every node of a draft that was verified."""
        if len(probing.newest) != len(self._levels[0] if self._levels else ()):
            return
        new = [said[node] for node in probing.newest]
        if len(self._levels) < NGRAM - 1:
            self._levels.append(new)
            return
        for column, token_id in enumerate(new):
            self.pool.add([*(level[column] for level in self._levels), token_id])
        self._levels = [*self._levels[1:], new]

    def _guesses(self, last_token_id: int, num_nodes: int) -> GrowingTree:
        """Return the n-grams behind a token as a tree, latest first, common beginnings shared."""
        tree = GrowingTree()
        known: dict[tuple[int, ...], int] = {(): -1}
        for tail in self.pool.tails(last_token_id):
            for length in range(1, len(tail) + 1):
                way = tail[:length]
                if way in known or len(tree) >= num_nodes:
                    continue
                if way[:-1] in known:
                    known[way] = tree.add(way[-1], known[way[:-1]], 1.0)
        return tree
