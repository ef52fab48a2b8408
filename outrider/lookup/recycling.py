"""Drafts from what the target said before: for every token the ids it deemed most likely next.

Paper: token recycling, Luo et al. 2024, arXiv:2408.08696. Theirs fills a fixed tree; here it grows
best first, by the share of tokens that each rank was seen to get.
"""

import heapq
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from outrider.tree import GrowingTree

NUM_CONTINUATIONS = 8
MAX_TOKENS = 8192  # that a table knows continuations of
# How often the id of each rank was the target's next token, when it was last seen behind the token;
# on greedy answers of a small model.
SHARES = (0.45, 0.14, 0.08, 0.05, 0.04, 0.03, 0.025, 0.02)
CHAIN_SHARE = 0.7  # the same, of an id that another source expects


@dataclass(slots=True)
class RecyclingTable:
    """The last continuations of every token, of one cache salt; those of tokens that were not seen
    for longest are forgotten."""

    max_tokens: int = MAX_TOKENS
    _next: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def learn(self, token_ids: Sequence[int], top_ids: Sequence[Sequence[int]]) -> None:
        """Take in what the target said behind tokens; what was known of them is replaced."""
        for token_id, top in zip(token_ids, top_ids, strict=True):
            self._next.pop(token_id, None)  # so that it becomes the newest
            self._next[token_id] = tuple(top[:NUM_CONTINUATIONS])
        while len(self._next) > self.max_tokens:
            del self._next[next(iter(self._next))]

    def likeliest(self, token_id: int) -> int | None:
        """Return the first continuation of a token."""
        known = self._next.get(token_id)
        return known[0] if known else None

    def following(self, token_id: int) -> list[tuple[int, float]]:
        """Return the continuations of a token and the shares of their ranks, likeliest first."""
        return list(zip(self._next.get(token_id, ()), SHARES, strict=False))

    def grow(self, last_token_id: int, num_nodes: int, *, chain: Sequence[int] = ()) -> GrowingTree:
        """Return a tree behind a token, its likeliest nodes first.

        ``chain``: ids that are expected to follow, from another source; they come first, and the
        tree grows from them too.
        """
        tree, at = GrowingTree(), -1
        heap: list[tuple[float, int, int, int]] = []
        order = 0
        taken: set[tuple[int, int]] = set()

        def offer(parent: int, token_id: int, score: float) -> None:
            nonlocal order
            for share, following in zip(SHARES, self._next.get(token_id, ()), strict=False):
                if (parent, following) not in taken:
                    heapq.heappush(heap, (-score * share, order, parent, following))
                    order += 1

        for token_id in chain[:num_nodes]:
            taken.add((at, token_id))
            # What a copy says is right more often than not, but less and less.
            at = tree.add(token_id, at, CHAIN_SHARE ** (at + 2))
        score, parent, before = 1.0, -1, last_token_id
        for node, token_id in enumerate(tree.token_ids):
            offer(parent, before, score)
            score, parent, before = tree.scores[node], node, token_id
        offer(parent, before, score)
        while heap and len(tree) < num_nodes:
            negative, _, parent, token_id = heapq.heappop(heap)
            if (parent, token_id) in taken:
                continue
            taken.add((parent, token_id))
            offer(tree.add(token_id, parent, -negative), token_id, -negative)
        return tree

    def __len__(self) -> int:
        return len(self._next)


@dataclass(slots=True)
class SaltedTables:
    """Tables, apart for every cache salt; the salts used longest ago are forgotten."""

    max_salts: int = 64
    _tables: OrderedDict[str, RecyclingTable] = field(default_factory=OrderedDict)

    def of(self, salt: str) -> RecyclingTable:
        """Return the table of a salt."""
        table = self._tables.pop(salt, None)
        if table is None:
            table = RecyclingTable()
        self._tables[salt] = table
        while len(self._tables) > self.max_salts:
            self._tables.popitem(last=False)
        return table

    def __len__(self) -> int:
        return len(self._tables)
