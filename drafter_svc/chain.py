"""Draft source "suffix+model" and its like: copy where much can be copied, else ask the model."""

from dataclasses import dataclass

from drafter_svc.lookup import SuffixLease, SuffixSource
from drafter_svc.source import Block, FeatureLease, Opening, Source, SourceLease, Wanted
from outrider.draft import Draft
from outrider.features import Features


@dataclass(slots=True)
class ChainedLease:
    """Which of both drafts is decided by the sequence alone, before anything is drawn.

    So it is exact in every mode, and a draft is never half of one and half of the other.
    """

    lookup: SuffixLease
    model: SourceLease
    min_score: float

    @property
    def cache_length(self) -> int:
        """What both still have: the model falls behind while copies are used."""
        return min(self.lookup.cache_length, self.model.cache_length)

    async def draft(self, wanted: Wanted) -> Block:
        """Propose the copy if enough of it is expected to be right, else what the model draws."""
        index = self.lookup.index
        index.truncate(min(wanted.start, len(index)))
        index.extend(wanted.token_ids)
        pending = wanted.pending or ()
        num_guesses = 0 if wanted.pending is None else 1
        match = index.match(wanted.num_draft_tokens + num_guesses, after=pending)
        if match.score < self.min_score:
            return await self.model.draft(wanted)
        ids = match.token_ids
        path = (*pending, *ids[:num_guesses])
        return Block(path=path, draft=Draft(ids[num_guesses:], self.lookup.source))

    def take_features(self, features: Features) -> None:
        """Hand on to the model, whichever of both drafts next."""
        assert isinstance(self.model, FeatureLease)
        self.model.take_features(features)

    def close(self) -> None:
        """Close both."""
        self.lookup.close()
        self.model.close()


@dataclass(frozen=True, slots=True)
class ChainedSource:
    """Suffix matching before a model.

    ``min_score``: expected number of right tokens from which on the copy is taken.
    """

    lookup: SuffixSource
    model: Source
    min_score: float = 2.0

    @property
    def name(self) -> str:
        """Name on the wire."""
        return f"{self.lookup.name}+{self.model.name}"

    @property
    def num_continuations(self) -> int:
        """As the model does."""
        return self.model.num_continuations

    @property
    def feature_layers(self) -> tuple[int, ...]:
        """As the model does."""
        return self.model.feature_layers

    @property
    def feature_width(self) -> int:
        """As the model does."""
        return self.model.feature_width

    @property
    def needs_tokenizer(self) -> bool:
        """As the model does."""
        return self.model.needs_tokenizer

    def open(self, opening: Opening) -> ChainedLease:
        """Begin with both."""
        return ChainedLease(self.lookup.open(opening), self.model.open(opening), self.min_score)
