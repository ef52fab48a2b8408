"""Draft source "lookahead": n-grams that come out of probe nodes beside the drafts."""

from dataclasses import dataclass, field

from drafter_svc.source import Block, Opening, Wanted
from outrider import sources
from outrider.continuations import Continuations
from outrider.draft import Draft
from outrider.lookup.lookahead import Lookahead, Probing


@dataclass(slots=True)
class LookaheadLease:
    """One sequence's window and pool; nothing of it outlives the lease.

    Probe nodes are verified and never accepted, so that the window costs rows and changes nothing.
    """

    lookahead: Lookahead = field(default_factory=Lookahead)
    length: int = 0
    _sent: tuple[int, Probing] | None = None
    """The last token before the newest draft, and that draft."""

    @property
    def cache_length(self) -> int:
        """All committed ids that were told."""
        return self.length

    async def draft(self, wanted: Wanted) -> Block:
        """Learn from the draft that was verified, and propose the next.

        Nothing is drafted ahead: the window moves on with what the verification says.
        """
        for each in wanted.continuations:
            self._learn(each)
        self.length = wanted.base
        if wanted.pending is not None or not wanted.num_draft_tokens:
            return Block(path=wanted.pending or (), draft=Draft(source=sources.LOOKAHEAD))
        probing = self.lookahead.draft(wanted.token_ids, wanted.num_draft_tokens)
        self._sent = (wanted.token_ids[-1], probing)
        draft = Draft(
            probing.token_ids, sources.LOOKAHEAD, parents=probing.parents, probes=probing.probes
        )
        return Block(path=(), draft=draft)

    def _learn(self, continuations: Continuations) -> None:
        """Take in what was said of the very draft that was sent; of others nothing fits."""
        if self._sent is None:
            return
        last_token_id, probing = self._sent
        if continuations.token_ids == (last_token_id, *probing.token_ids):
            self.lookahead.learn(probing, [row[0] for row in continuations.rows()[1:]])
            self._sent = None

    def close(self) -> None:
        """Nothing is shared, nothing needs freeing."""


@dataclass(frozen=True, slots=True)
class LookaheadSource:
    """Needs no model and fits any target, whose passes it fills with probes."""

    name: str = sources.LOOKAHEAD
    needs_tokenizer: bool = False
    num_continuations: int = 1
    feature_layers: tuple[int, ...] = ()
    feature_width: int = 0

    def open(self, opening: Opening) -> LookaheadLease:
        """Begin with an empty window."""
        return LookaheadLease()
