"""Draft sources "recycling" and "suffix+recycling": trees of what the target said before."""

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

from drafter_svc.lookup import SuffixLease, SuffixSource
from drafter_svc.outcomes import Candidates, rank
from drafter_svc.source import Block, Foreseen, Opening, Wanted
from outrider import sources
from outrider.draft import Draft
from outrider.lookup.recycling import CHAIN_SHARE, NUM_CONTINUATIONS, RecyclingTable, SaltedTables
from outrider.sampling import Mode
from outrider.tree import GrowingTree

MAX_NUM_COPIED = 8
"""Nodes at most that a copy takes, in a tree that has room for them twice."""


@dataclass(slots=True)
class RecyclingLease:
    """One sequence's place in the table that its cache salt shares, with a copy where one fits.

    Trees are functions of the committed ids and of what the target said before, in RATIO of the
    sequence itself, so they are exact in every mode.
    """

    table: RecyclingTable
    source: str
    lookup: SuffixLease | None
    vocab_size: int
    length: int = 0

    @property
    def cache_length(self) -> int:
        """All committed ids that were told."""
        return self.length

    async def draft(self, wanted: Wanted) -> Block:
        """Learn, then grow a tree behind what is known; behind a pending draft after a guess."""
        self.learn(wanted)
        path: tuple[int, ...] = ()
        if wanted.pending is not None:
            before = (*wanted.token_ids, *wanted.pending)
            guess = self._guess(before[-1], wanted.pending)
            if guess is None:
                return Block(path=wanted.pending, draft=Draft(source=self.source))
            path = (*wanted.pending, guess)
        return self._block(wanted, path)

    async def foresee(self, wanted: Wanted) -> Foreseen:
        """Learn, and rank what the target said last behind every pending token."""
        self.learn(wanted)
        pending = wanted.pending or ()
        places = [self._candidates(wanted, pending[:num]) for num in range(len(pending) + 1)]
        found = rank(pending, places, wanted.max_outcomes)
        return Foreseen(tuple(each.path(pending) for each in found))

    async def draft_each(self, wanted: Wanted, foreseen: Foreseen) -> AsyncGenerator[Block, None]:
        """Grow a tree behind every outcome."""
        for path in foreseen.paths:
            yield self._block(wanted, path)

    def _block(self, wanted: Wanted, path: tuple[int, ...]) -> Block:
        tree = self.grow(wanted, path)
        draft = Draft(tuple(tree.token_ids), self.source, parents=tuple(tree.parents))
        return Block(path=path, draft=draft, scores=tuple(tree.scores))

    def _candidates(self, wanted: Wanted, after: Sequence[int]) -> Candidates:
        """Return what may follow some pending tokens: the copy's id, then what is recycled."""
        copied = self._copy(after, 1)
        recycled = self.table.following((after or wanted.token_ids)[-1])
        if not copied:
            return recycled
        left = 1 - CHAIN_SHARE
        others = [(i, left * share) for i, share in recycled if i != copied[0]]
        return [(copied[0], CHAIN_SHARE), *others]

    def learn(self, wanted: Wanted) -> None:
        """Take in committed ids and what the target said."""
        for each in wanted.continuations:
            if each.is_below(self.vocab_size):
                self.table.learn(each.token_ids, each.rows())
        self.length = wanted.base
        if self.lookup is not None:
            self.lookup.index.truncate(wanted.start)
            self.lookup.index.extend(wanted.token_ids)

    def grow(self, wanted: Wanted, path: Sequence[int]) -> GrowingTree:
        """Return a tree behind the committed ids and a path."""
        num_nodes = wanted.num_draft_tokens
        copied = self._copy(path, min(MAX_NUM_COPIED, max(1, num_nodes // 2)))
        return self.table.grow((path or wanted.token_ids)[-1], num_nodes, chain=copied)

    def _guess(self, last_token_id: int, pending: Sequence[int]) -> int | None:
        copied = self._copy(pending, 1)
        return copied[0] if copied else self.table.likeliest(last_token_id)

    def _copy(self, after: Sequence[int], count: int) -> tuple[int, ...]:
        if self.lookup is None:
            return ()
        return self.lookup.index.match(count, after=after).token_ids

    def close(self) -> None:
        """Leave the output to later copies."""
        if self.lookup is not None:
            self.lookup.close()


@dataclass(frozen=True, slots=True)
class RecyclingSource:
    """Token recycling; needs no model and fits any target."""

    tables: SaltedTables = field(default_factory=SaltedTables)
    lookup: SuffixSource | None = None
    needs_tokenizer: bool = False
    num_continuations: int = NUM_CONTINUATIONS
    feature_layers: tuple[int, ...] = ()
    feature_width: int = 0

    @property
    def name(self) -> str:
        """Name on the wire."""
        own = sources.RECYCLING
        return own if self.lookup is None else f"{self.lookup.name}+{own}"

    def open(self, opening: Opening) -> RecyclingLease:
        """Begin at the table of the salt; in RATIO at one of its own, as copies do."""
        lookup = None if self.lookup is None else self.lookup.open(opening)
        is_ratio = opening.mode is Mode.RATIO
        table = RecyclingTable() if is_ratio else self.tables.of(opening.salt)
        return RecyclingLease(table, self.name, lookup, opening.vocab_size)
