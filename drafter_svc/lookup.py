"""Draft sources "ngram" and "suffix": copy what followed the same words before."""

from collections.abc import AsyncGenerator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from drafter_svc.outcomes import rank
from drafter_svc.source import Block, Foreseen, Opening, Wanted
from outrider import sources
from outrider.draft import Draft
from outrider.lookup.ngram import NgramIndex
from outrider.lookup.suffix import SaltedTexts, SharedTexts, SuffixIndex
from outrider.sampling import Mode

SHARES = (0.5, 0.2, 0.1, 0.05)
"""How often the first, second, ... id that an index names is the target's; good enough to rank."""


class Index(Protocol):
    """Finds continuations of a growing sequence."""

    def __len__(self) -> int: ...

    def extend(self, token_ids: Iterable[int]) -> None:
        """Append ids."""
        ...

    def truncate(self, length: int) -> None:
        """Keep the first ids."""
        ...

    def propose(self, num_draft_tokens: int, *, after: Sequence[int] = ()) -> list[int]:
        """Return ids that may follow."""
        ...

    def following(self, num_ids: int, *, after: Sequence[int] = ()) -> list[int]:
        """Return different ids that may come next, likeliest first."""
        ...


@dataclass(slots=True)
class LookupLease:
    """The index of one sequence's committed ids."""

    index: Index
    source: str

    @property
    def cache_length(self) -> int:
        """All ids that were told are kept."""
        return len(self.index)

    async def draft(self, wanted: Wanted) -> Block:
        """Propose a continuation; behind a pending draft its first id is the guess."""
        self._take_in(wanted)
        if wanted.pending is None:
            proposed = self.index.propose(wanted.num_draft_tokens)
            return Block(path=(), draft=Draft(tuple(proposed), self.source))
        ahead = self.index.propose(wanted.num_draft_tokens + 1, after=wanted.pending)
        path = (*wanted.pending, *ahead[:1])
        return Block(path=path, draft=Draft(tuple(ahead[1:]), self.source))

    async def foresee(self, wanted: Wanted) -> Foreseen:
        """Rank what followed the same words, before every pending token and behind all."""
        self._take_in(wanted)
        pending = wanted.pending or ()
        ids = [
            self.index.following(len(SHARES), after=pending[:num])
            for num in range(len(pending) + 1)
        ]
        places = [list(zip(each, SHARES, strict=False)) for each in ids]
        found = rank(pending, places, wanted.max_outcomes)
        return Foreseen(tuple(each.path(pending) for each in found))

    async def draft_each(self, wanted: Wanted, foreseen: Foreseen) -> AsyncGenerator[Block, None]:
        """Copy behind every outcome."""
        for path in foreseen.paths:
            ids = self.index.propose(wanted.num_draft_tokens, after=path)
            yield Block(path=path, draft=Draft(tuple(ids), self.source))

    def _take_in(self, wanted: Wanted) -> None:
        self.index.truncate(wanted.start)
        self.index.extend(wanted.token_ids)

    def close(self) -> None:
        """Nothing is shared, nothing needs freeing."""


@dataclass(slots=True)
class SuffixLease(LookupLease):
    """Leaves the output behind for later sequences of the same cache salt."""

    index: SuffixIndex
    shared: SharedTexts
    num_prompt_tokens: int

    def close(self) -> None:
        """Remember the output."""
        self.shared.add(self.index.tail(self.num_prompt_tokens))


@dataclass(frozen=True, slots=True)
class NgramSource:
    """The most recent match in the sequence itself; needs no model and fits any target."""

    name: str = sources.NGRAM
    needs_tokenizer: bool = False
    num_continuations: int = 0
    feature_layers: tuple[int, ...] = ()
    feature_width: int = 0

    def open(self, opening: Opening) -> LookupLease:
        """Begin with an empty index."""
        return LookupLease(NgramIndex(), self.name)


@dataclass(frozen=True, slots=True)
class SuffixSource:
    """The most frequent continuation in the sequence and in earlier outputs of its cache salt."""

    texts: SaltedTexts = field(default_factory=SaltedTexts)
    name: str = sources.SUFFIX
    needs_tokenizer: bool = False
    num_continuations: int = 0
    feature_layers: tuple[int, ...] = ()
    feature_width: int = 0

    def open(self, opening: Opening) -> SuffixLease:
        """Begin with an empty index beside the outputs of the same salt.

        Not in RATIO: an earlier output of the same seed was drawn with the noise that decides this
        one, and drafts that know it would change the law.
        """
        shared = self.texts.of(opening.salt)
        index = SuffixIndex(None if opening.mode is Mode.RATIO else shared)
        return SuffixLease(index, self.name, shared, opening.num_prompt_tokens)
