"""Where a sequence's drafts come from.

The board, a drafter that is still at work, lookup, or nowhere.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from orchestrator.board import DraftBoard
from orchestrator.kept_features import StepFeatures
from orchestrator.patience import Patience
from orchestrator.policy import SpeculationPlan
from orchestrator.receipt import BlockResult, Stats
from orchestrator.sequence import Sequence
from orchestrator.verdict import Verdict
from outrider import sources
from outrider.draft import NO_DRAFT, Draft
from outrider.lookup.ngram import NgramIndex

FAILURES = ("drafter_lost", "drafter_refused")  # losses that speak against the drafter
RETAKE_AFTER_S = 1.0  # a lost drafter is not asked again before


class DraftLease(Protocol):
    """An open stream to a drafter for one sequence; its blocks arrive on the board."""

    @property
    def is_alive(self) -> bool:
        """False once the stream ended."""
        ...

    @property
    def lost_reason(self) -> str:
        """Why it ended."""
        ...

    def answers(self, sequence: Sequence) -> bool:
        """True while an answer is awaited that can still fit the present sequence."""
        ...

    async def advance(self, sequence: Sequence, pending: Draft | None, num_tokens: int) -> None:
        """Tell what is committed and what is being verified (None: nothing is)."""
        ...

    @property
    def num_heals(self) -> int:
        """Times that the drafter's KV was not what the ledger expected."""
        ...

    @property
    def patience(self) -> Patience:
        """Whether it makes sense to wait for this drafter."""
        ...

    @property
    def is_trusted(self) -> bool:
        """False once the drafter failed again and again, here or for others."""
        ...

    def judge(self, failure: str | None) -> None:
        """Tell what came of a draft: nothing wrong, or what was."""
        ...

    @property
    def num_continuations(self) -> int:
        """Most likely ids of every verified row that the drafter learns from; 0: none."""
        ...

    def teach(self, continuations: Any) -> None:
        """Hand on what the target said, with the next advance."""
        ...

    @property
    def feature_layers(self) -> tuple[int, ...]:
        """Layers of the target whose hidden states the drafter wants; empty: none."""
        ...

    def teach_features(self, features: StepFeatures) -> None:
        """Hand on hidden states of what was committed, before the next advance."""
        ...

    def close(self) -> None:
        """End the stream."""
        ...


@dataclass(slots=True)
class Drafting:
    """Finds the draft of every cycle and keeps the drafter ahead; never fails, falls back instead.

    ``open_lease`` returns None where no drafter fits the target and the plan's sources.
    """

    plan: SpeculationPlan
    board: DraftBoard
    stats: Stats
    open_lease: Callable[[], DraftLease | None]
    clock: Callable[[], float]
    index: NgramIndex | None = None
    lease: DraftLease | None = None
    retake_at: float = 0.0
    num_heals: int = 0

    async def draft_for(self, sequence: Sequence) -> Draft:
        """Return the draft for the sequence as it is now.

        Empty if none is ready within the budget.
        """
        num_tokens = min(self.plan.num_draft_tokens(sequence.cycle), sequence.num_remaining - 1)
        if self.lease is not None and not self.lease.is_trusted:
            self.board.clear()
            self._part("drafter_suspect")
        fitting = self.board.take(sequence.token_ids, sequence.cycle)
        if not self.plan.speculates:
            return NO_DRAFT
        if sequence.cycle == 0:
            self._current_lease()  # the step that reads the prompt asks for what the drafter wants
        if num_tokens <= 0:
            if fitting is not None:
                self.board.discard(fitting)
            return self._none("near_the_end" if sequence.num_remaining <= 1 else "length_zero")
        if sequence.cycle == 0:
            return self._none("prefill")  # the drafter reads the prompt meanwhile
        draft = await self._from_drafter(sequence, fitting, num_tokens)
        if not draft and self.index is not None:
            draft = self._look_up(sequence, num_tokens)
        if not draft:
            return self._none(self._why_none(sequence))
        if self.plan.num_traced_ids:
            draft = draft.first_path()  # a trace follows one chain
        if self.plan.uses_drafts_whole and len(draft) > num_tokens:
            self.board.discard(draft)
            return self._none("draft_too_long")
        self.board.num_discarded_tokens += len(draft) - len(draft.head(num_tokens))
        return draft.head(num_tokens)

    def learn(self, draft: Draft, verdict: Verdict) -> None:
        """Let the drafter answer for its drafts, and learn; lookup answers to nobody."""
        if self.lease is not None and verdict.continuations is not None:
            self.lease.teach(verdict.continuations)
        if self.lease is not None and verdict.features.chunks:
            self.lease.teach_features(verdict.features)
        if self.lease is not None and draft.num_proposed and draft.source != sources.LOOKUP:
            invalid = "" if verdict.no_room_for_draft else verdict.invalid_draft
            self.lease.judge(f"invalid draft: {invalid}" if invalid else None)

    @property
    def num_continuations(self) -> int:
        """Most likely ids of every verified row that the drafter wants to learn from."""
        return 0 if self.lease is None else self.lease.num_continuations

    @property
    def feature_layers(self) -> tuple[int, ...]:
        """Layers of the target whose hidden states the drafter wants."""
        return () if self.lease is None else self.lease.feature_layers

    async def prepare_next(self, sequence: Sequence, pending: Draft) -> None:
        """Let the drafter work on what follows while ``pending`` is being verified."""
        wanted = self.plan.num_draft_tokens(sequence.cycle + 1)
        chain = pending.first_path()  # of a tree the drafter goes on behind its likeliest path
        num_tokens = min(wanted, sequence.num_remaining - len(chain) - 2)
        lease = self._current_lease()
        if num_tokens > 0 and lease is not None:
            await lease.advance(sequence, chain, num_tokens)

    def close(self) -> None:
        """End the drafter's lease and count what was never used."""
        self.board.clear()
        self._drop_lease()

    async def _from_drafter(
        self, sequence: Sequence, fitting: Draft | None, num_tokens: int
    ) -> Draft | None:
        """Return the block that fits, now or within the budget, and count what came of it."""
        if fitting is not None:
            self.stats.note_blocks(BlockResult.HIT)
            if self.lease is not None:
                self.lease.patience.note_in_time()
            return fitting
        lease = self._current_lease()
        if lease is None:
            return None
        was_ahead = lease.answers(sequence)
        draft = await self._wait(lease, sequence, num_tokens)
        if draft is None and lease.answers(sequence):
            self.stats.note_blocks(BlockResult.LATE)
        else:
            is_hit = was_ahead and draft is not None
            self.stats.note_blocks(BlockResult.HIT if is_hit else BlockResult.MISS)
        return draft

    async def _wait(self, lease: DraftLease, sequence: Sequence, num_tokens: int) -> Draft | None:
        """Wait for the drafter within the budget, asking it again if what it works on cannot
        fit."""
        began = self.clock()
        if self.plan.draft_wait_s <= 0 or not lease.patience.allows(began):
            return None
        draft: Draft | None = None
        try:
            async with asyncio.timeout(self.plan.draft_wait_s):
                asked = False
                while lease.is_alive:
                    if not lease.answers(sequence):
                        if asked:
                            break
                        await lease.advance(sequence, None, num_tokens)
                        asked = True
                    await self.board.wait()
                    draft = self.board.take(sequence.token_ids, sequence.cycle)
                    if draft is not None:
                        break
        except TimeoutError:
            pass
        now = self.clock()
        self.stats.draft_ms += (now - began) * 1e3
        if draft is None and lease.answers(sequence):
            lease.patience.note_late(now)
        else:
            lease.patience.note_in_time()
        return draft

    def _current_lease(self) -> DraftLease | None:
        """Return a live lease, taking a drafter (back) where that is possible."""
        if not self.plan.speculates:
            return None
        if self.lease is not None and not self.lease.is_alive:
            if self.lease.lost_reason in FAILURES:
                self.lease.judge(self.lease.lost_reason)
            self._part(self.lease.lost_reason)
        if self.lease is None and self.clock() >= self.retake_at:
            self.lease = self.open_lease()
            self.retake_at = self.clock() + RETAKE_AFTER_S
        return self.lease

    def _part(self, reason: str) -> None:
        """Give the drafter up, and look for one again a little later."""
        self.stats.note_fallback(reason)
        self._drop_lease()
        self.retake_at = self.clock() + RETAKE_AFTER_S

    def _drop_lease(self) -> None:
        if self.lease is not None:
            self.num_heals += self.lease.num_heals
            self.lease.close()
            self.lease = None

    def _look_up(self, sequence: Sequence, num_tokens: int) -> Draft:
        assert self.index is not None
        self.index.extend(sequence.token_ids[len(self.index) :])
        return Draft(tuple(self.index.propose(num_tokens)), sources.LOOKUP)

    def _why_none(self, sequence: Sequence) -> str:
        if self.lease is None:
            return "no_drafter"
        return "late_draft" if self.lease.answers(sequence) else "nothing_proposed"

    def _none(self, reason: str) -> Draft:
        self.stats.note_fallback(reason)
        return NO_DRAFT
