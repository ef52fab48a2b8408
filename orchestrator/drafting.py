"""Where a sequence's drafts come from.

The board, a drafter that is still at work, lookup, or nowhere.
"""

import asyncio
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from orchestrator.board import DraftBoard
from orchestrator.draft_length import Choice, DraftLength, Reason, uniform
from orchestrator.feedback import NO_FEEDBACK, FeedbackWanted
from orchestrator.kept_features import StepFeatures
from orchestrator.outcome_count import num_outcomes
from orchestrator.patience import Patience
from orchestrator.policy import SpeculationPlan
from orchestrator.receipt import BlockResult, Stats
from orchestrator.sequence import Sequence
from orchestrator.verdict import Verdict
from outrider import sources
from outrider.constraint import ConstrainedText
from outrider.draft import NO_DRAFT, Draft
from outrider.errors import InvalidField
from outrider.lookup.ngram import NgramIndex
from outrider.policy import AfterError, AfterLowAgreement

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

    async def advance(
        self,
        sequence: Sequence,
        pending: Draft | None,
        num_tokens: int,
        *,
        max_outcomes: int = 1,
    ) -> None:
        """Tell what is committed and what is being verified (None: nothing is).

        Drafts are wanted for so many outcomes of what is being verified.
        """
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

    def teach(self, continuations: Any) -> None:
        """Hand on what the target said, with the next advance."""
        ...

    @property
    def feedback_wanted(self) -> FeedbackWanted:
        """What the drafter wants to learn of a verification."""
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

    ``open_lease`` returns None where no drafter fits the target and the plan's sources. ``length``
    chooses for the drafter, ``lookup_length`` for the orchestrator's own lookup.
    """

    plan: SpeculationPlan
    board: DraftBoard
    stats: Stats
    open_lease: Callable[[], DraftLease | None]
    clock: Callable[[], float]
    length: DraftLength
    lookup_length: DraftLength
    index: NgramIndex | None = None
    constrained: ConstrainedText | None = None
    """The output as far as lookup was asked to go on with it."""
    lease: DraftLease | None = None
    retake_at: float = 0.0
    has_given_up: bool = False
    """After an error, where the policy wants no drafter any more."""
    num_heals: int = 0

    async def draft_for(self, sequence: Sequence) -> Draft:
        """Return the draft for the sequence as it is now.

        Empty if none is ready within the budget.
        """
        if self.lease is not None and not self.lease.is_trusted:
            self.board.clear()
            self._part("drafter_suspect")
        fitting = self.board.take(sequence.token_ids, sequence.cycle)
        if not self.plan.speculates:
            return NO_DRAFT
        if sequence.cycle == 0:
            self._current_lease()  # the step that reads the prompt asks for what the drafter wants
        if sequence.num_remaining <= 1:
            return self._none("near_the_end", fitting)
        if sequence.cycle == 0:
            return self._none("prefill", fitting)  # the drafter reads the prompt meanwhile
        draft, choice = NO_DRAFT, None
        if fitting is not None or self._current_lease() is not None:
            choice = self.length.choose(sequence.cycle)
            draft = await self._from_drafter(sequence, fitting, choice) or NO_DRAFT
        used = choice
        if not draft and self.index is not None and self._allows_lookup(choice):
            used = self.lookup_length.choose(sequence.cycle)
            draft = await self._look_up(sequence, used)
        choice = choice or used
        if choice is not None:
            self.stats.note_length(choice)
        if not draft or used is None:
            return self._none(self._why_none(sequence, choice))
        return self._shaped(draft, _most(used, sequence))

    def _shaped(self, draft: Draft, most: int) -> Draft:
        """Return a draft as it is verified: a chain where it is traced, ``most`` tokens long."""
        if self.plan.num_traced_ids:
            draft = draft.first_path()  # a trace follows one chain
        if self.plan.uses_drafts_whole and len(draft) > most:
            return self._none("draft_too_long", draft)
        shaped = draft.head(most)
        if draft.source != sources.LOOKUP:
            shaped = self.length.trim(shaped)
        self.board.num_discarded_tokens += len(draft) - len(shaped)
        return shaped or self._none("trimmed")

    def learn(self, draft: Draft, verdict: Verdict) -> None:
        """Let the drafter answer for its drafts, and learn; lookup answers to nobody."""
        self.length.lane.verify.observe(draft, verdict)
        if draft:
            is_lookup = draft.source == sources.LOOKUP
            (self.lookup_length if is_lookup else self.length).observe(draft, verdict)
        if self.lease is not None and verdict.continuations is not None:
            self.lease.teach(verdict.continuations)
        if self.lease is not None and verdict.features.chunks:
            self.lease.teach_features(verdict.features)
        if self.lease is not None and draft.num_proposed and draft.source != sources.LOOKUP:
            invalid = "" if verdict.no_room_for_draft else verdict.invalid_draft
            self.lease.judge(f"invalid draft: {invalid}" if invalid else None)
            if invalid:
                self._note_error()

    @property
    def feedback_wanted(self) -> FeedbackWanted:
        """What the drafter wants to learn of the next verification."""
        return NO_FEEDBACK if self.lease is None else self.lease.feedback_wanted

    async def prepare_next(self, sequence: Sequence, pending: Draft) -> None:
        """Let the drafter work on what follows while ``pending`` is being verified."""
        chain = pending.first_path()  # of a tree the drafter goes on behind its likeliest path
        lease = self._current_lease()
        if lease is None:
            return
        choice = self.length.choose(sequence.cycle + 1)
        num_tokens = min(choice.num_tokens, sequence.num_remaining - len(chain) - 2)
        if num_tokens > 0:
            lane = self.length.lane
            drawn = uniform(f"{self.length.sequence_id} outcomes", sequence.cycle)
            count = num_outcomes(self.plan.max_outcomes, lane, len(chain), drawn)
            lane.source.last_outcomes = count
            await lease.advance(sequence, chain, num_tokens, max_outcomes=count)

    def close(self) -> None:
        """End the drafter's lease and count what was never used."""
        self.board.clear()
        self._drop_lease()

    async def _from_drafter(
        self, sequence: Sequence, fitting: Draft | None, choice: Choice
    ) -> Draft | None:
        """Return the drafter's draft of this cycle if one is wanted and comes, and learn what it
        took."""
        num_tokens = _most(choice, sequence)
        if num_tokens <= 0:
            if fitting is not None:
                self.board.discard(fitting)
            self.length.note_no_draft()
            return None
        waited_ms = self.stats.draft_ms
        draft = await self._block(sequence, fitting, num_tokens, choice)
        if num_tokens == choice.num_tokens and self.lease is not None:
            wait_ms = self.stats.draft_ms - waited_ms
            self.length.note_draft(choice, arrived=bool(draft), wait_ms=wait_ms)
        return draft

    async def _block(
        self, sequence: Sequence, fitting: Draft | None, num_tokens: int, choice: Choice
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
        most_s = self.length.max_wait_s(choice)
        draft, was_ahead = await self._wait(lease, sequence, num_tokens, most_s)
        if draft is None and lease.answers(sequence):
            self.stats.note_blocks(BlockResult.LATE)
        else:
            is_hit = was_ahead and draft is not None
            self.stats.note_blocks(BlockResult.HIT if is_hit else BlockResult.MISS)
        return draft

    async def _wait(
        self, lease: DraftLease, sequence: Sequence, num_tokens: int, most_s: float | None
    ) -> tuple[Draft | None, bool]:
        """Wait for the drafter within the budget, asking it again if what it works on cannot fit.

        Returns what came, and whether it was on its way already, so that nobody had to ask again.
        ``most_s`` is where waiting stops to pay; a drafter that takes longer is not to blame for
        that, only one that takes the whole budget is late.
        """
        now_s = asyncio.get_running_loop().time()
        pays_until = None if most_s is None else now_s + most_s
        began = self.clock()
        if self.plan.draft_wait_s <= 0 or not lease.patience.allows(began):
            return None, False
        draft: Draft | None = None
        asked = False
        try:
            async with asyncio.timeout(self.plan.draft_wait_s):
                while lease.is_alive:
                    if not lease.answers(sequence):
                        if asked:
                            break
                        await lease.advance(sequence, None, num_tokens)
                        asked = True
                    # Only the wait is cut short: a write that is broken off ends the stream.
                    async with asyncio.timeout_at(pays_until):
                        await self.board.wait()
                    draft = self.board.take(sequence.token_ids, sequence.cycle)
                    if draft is not None:
                        break
        except TimeoutError:
            pass
        now = self.clock()
        self.stats.draft_ms += (now - began) * 1e3
        if draft is None and lease.answers(sequence):
            if most_s is None or most_s >= self.plan.draft_wait_s:
                lease.patience.note_late(now)
        else:
            lease.patience.note_in_time()
        return draft, not asked

    def _current_lease(self) -> DraftLease | None:
        """Return a live lease, taking a drafter (back) where that is possible."""
        if not self.plan.speculates or not self.plan.asks_drafters:
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
        if reason != "drafter_full":
            self._note_error()

    def _note_error(self) -> None:
        """Do without drafters from here on, where the policy says so."""
        after = self.plan.fallbacks.errors
        if after is AfterError.RETRY:
            return
        self.has_given_up, self.retake_at = True, math.inf
        self._drop_lease()
        if after is AfterError.TARGET_ONLY:
            self.index = None

    def _drop_lease(self) -> None:
        if self.lease is not None:
            self.num_heals += self.lease.num_heals
            self.lease.close()
            self.lease = None

    async def _look_up(self, sequence: Sequence, choice: Choice) -> Draft:
        assert self.index is not None
        num_tokens = _most(choice, sequence)
        if num_tokens <= 0:
            return NO_DRAFT
        self.index.extend(sequence.token_ids[len(self.index) :])
        draft = Draft(tuple(self.index.propose(num_tokens)), sources.LOOKUP)
        if draft and self.constrained is not None:
            draft = await asyncio.to_thread(self._legal_part, draft, sequence.output_ids)
        self.lookup_length.note_draft(choice, arrived=bool(draft), wait_ms=0.0)
        return draft

    def _legal_part(self, draft: Draft, output_ids: list[int]) -> Draft:
        """Return what of a chain the constraint allows: a point mass may be cut in every mode."""
        assert self.constrained is not None
        try:
            self.constrained = self.constrained.behind(output_ids)
        except InvalidField:
            return draft  # the verifier will say so
        return draft.legal_part(self.constrained.legal((), draft.token_ids, ()))

    def _allows_lookup(self, choice: Choice | None) -> bool:
        """Return whether lookup may draft where the drafter has nothing, by what it was asked."""
        if choice is None:
            return True
        if choice.reason is Reason.LOW_AGREEMENT:
            return self.plan.fallbacks.low_agreement is AfterLowAgreement.LOOKUP
        return choice.allows_lookup

    def _why_none(self, sequence: Sequence, choice: Choice | None) -> str:
        if choice is not None and not choice.num_tokens:
            return "length_zero" if choice.reason is Reason.FIXED else choice.reason.value
        if not self.plan.asks_drafters:
            return "nothing_proposed"
        if self.lease is None:
            return "after_error" if self.has_given_up else "no_drafter"
        return "late_draft" if self.lease.answers(sequence) else "nothing_proposed"

    def _none(self, reason: str, unused: Draft | None = None) -> Draft:
        if unused is not None:
            self.board.discard(unused)
        self.stats.note_fallback(reason)
        return NO_DRAFT


def _most(choice: Choice, sequence: Sequence) -> int:
    """Return the tokens that a draft may have: behind them at least one more is committed."""
    return min(choice.num_tokens, sequence.num_remaining - 1)
