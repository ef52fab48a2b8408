"""Draft source "ngram": copies what followed the same words before."""

from dataclasses import dataclass, field

from drafter_svc.source import Block, Opening, Wanted
from outrider.draft import Draft
from outrider.lookup.ngram import NgramIndex

NAME = "ngram"


@dataclass(frozen=True, slots=True)
class NgramSource:
    """Prompt lookup over the sequence's own ids; needs no model and fits any target."""

    name: str = NAME
    needs_tokenizer: bool = False

    def open(self, opening: Opening) -> "NgramLease":
        """Begin with an empty index."""
        return NgramLease()


@dataclass(slots=True)
class NgramLease:
    """The index of one sequence's committed ids."""

    index: NgramIndex = field(default_factory=NgramIndex)

    @property
    def cache_length(self) -> int:
        """All ids that were told are kept."""
        return len(self.index)

    async def draft(self, wanted: Wanted) -> Block:
        """Propose the continuation of the most recent match.

        Behind a pending draft its first id is the guess.
        """
        self.index.truncate(wanted.start)
        self.index.extend(wanted.token_ids)
        if wanted.pending is None:
            proposed = self.index.propose(wanted.num_draft_tokens)
            return Block(path=(), draft=Draft(tuple(proposed), NAME))
        ahead = self.index.propose(wanted.num_draft_tokens + 1, after=wanted.pending)
        path = (*wanted.pending, *ahead[:1])
        return Block(path=path, draft=Draft(tuple(ahead[1:]), NAME))

    def close(self) -> None:
        """Nothing is shared, nothing needs freeing."""
