"""How many draft tokens a cycle asks for: as told, or as many as promise the most.

Every choice is made once a cycle, before its first draft token is drawn, from past cycles and from
other requests alone: that keeps RATIO exact.
"""

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import blake2b

from orchestrator.acceptance_estimate import SequenceAcceptance
from orchestrator.agreement import Agreement
from orchestrator.estimates import Lane
from orchestrator.expected_rate import expected_rates, rates_by_margin
from orchestrator.policy import AutoLength, SpeculationPlan
from orchestrator.pressure import Pressure
from orchestrator.verdict import Verdict
from outrider.draft import Draft
from outrider.gain import MIN_GAIN, best_length

START = 4  # before anything is known, and where drafts are tried again
NUM_WARM_UP = 8  # cycles of a source, of all requests, before its estimates are used
NUM_YOUNG = 64  # cycles before it is explored less
EXPLORE_YOUNG, EXPLORE = 1 / 8, 1 / 64  # share of cycles that try another length
NUM_TRIED = 4  # cycles in a row: a drafter that was not asked for long must catch up first
MIN_CYCLES_BETWEEN_MOVES = 8


class Reason(enum.Enum):
    """Why a cycle asks for as many draft tokens as it does."""

    FIXED = "fixed"  # the request or the policy says so
    WARM_UP = "warm_up"  # too little is known
    BEST = "best"  # the most promising length, newly moved to
    KEPT = "kept"  # the same as before: no other promises enough more
    NO_GAIN = "no_gain"  # no draft pays for this sequence
    SWITCHED_OFF = "switched_off"  # no draft of the source has paid for anyone
    PROBE = "probe"  # switched off, tried again
    EXPLORED = "explored"  # tried so that estimates stay true
    LOW_AGREEMENT = "low_agreement"  # too few draft tokens of the class were accepted
    SHORTENED = "pressure_shortened"
    STOPPED = "pressure_stopped"
    GAVE_WAY = "gave_way"  # to requests of a higher priority


@dataclass(frozen=True, slots=True)
class Choice:
    """The draft length of one cycle.

    ``gain`` is the predicted rate over that of target-only, 1 where nothing was predicted.
    """

    cycle: int
    num_tokens: int
    reason: Reason
    gain: float = 1.0

    @property
    def allows_lookup(self) -> bool:
        """False where a cycle is to show what it takes without any draft."""
        return bool(self.num_tokens) or self.reason is not Reason.EXPLORED


def uniform(sequence_id: str, cycle: int) -> float:
    """Return a number in [0, 1) that sequence and cycle alone decide."""
    digest = blake2b(f"{cycle} {sequence_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") / 2**64


@dataclass(slots=True)
class DraftLength:
    """Chooses the draft lengths of one sequence and teaches the estimates what came of them.

    ``limit`` bounds chosen lengths further, by what workers take.
    """

    plan: SpeculationPlan
    sequence_id: str = ""
    lane: Lane = field(default_factory=Lane)
    limit: int = 1 << 16
    pressure: Callable[[], Pressure] = lambda: Pressure.NONE
    most_tokens: Callable[[], int | None] = lambda: None
    """The longest draft that others allow; None: any."""
    agreement: Agreement | None = None
    """What the request's class has seen of the source; None: any is enough."""
    own: SequenceAcceptance = field(default_factory=SequenceAcceptance)
    present: int | None = None
    """The length that choices stay with; None before the first."""
    num_since_move: int = 0
    num_tries_left: int = 0
    tried: Reason = Reason.EXPLORED
    _choice: Choice | None = None
    _was_asked: bool = False

    def choose(self, cycle: int) -> Choice:
        """Return the choice of a cycle, the same however often it is asked for."""
        if self._choice is None or self._choice.cycle != cycle:
            choice = self._disagreed(cycle) or self._planned(cycle)
            most = self.most_tokens()
            if most is not None and choice.num_tokens > most:
                allowed = most if most >= self._fewest else 0
                choice = Choice(cycle, allowed, Reason.GAVE_WAY, choice.gain)
            self._choice = choice
        return self._choice

    def bind(self, lane: Lane, limit: int, agreement: Agreement | None = None) -> None:
        """Choose for another drafter from the next choice on."""
        self.lane, self.limit, self._was_asked = lane, max(limit, 1), False
        self.agreement = agreement

    def max_wait_s(self, choice: Choice) -> float | None:
        """Return how long a draft may be waited for and still pay if all of it is accepted.

        None where nothing is known, or where it was asked for in any case.
        """
        if choice.reason in (Reason.FIXED, Reason.WARM_UP):
            return None
        times_ms = self.lane.verify.times_ms(choice.num_tokens)
        most_ms = (1 + choice.num_tokens) * times_ms[0] / MIN_GAIN - times_ms[-1]
        return max(most_ms, 0.0) / 1e3

    def note_draft(self, choice: Choice, *, arrived: bool, wait_ms: float) -> None:
        """Learn whether the draft that was asked for came, and what it was waited for."""
        self.lane.source.num_wanted += 1
        self.lane.draft.arrival.observe(arrived)
        if self._was_asked:  # else the drafter had to catch up first
            self.lane.draft.wait.observe(choice.num_tokens, wait_ms)
        self._was_asked = True

    def note_no_draft(self) -> None:
        """The cycle asks for none, so the drafter falls behind."""
        self._was_asked = False

    def observe(self, draft: Draft, verdict: Verdict) -> None:
        """Learn what came of a draft of this source."""
        if verdict.no_room_for_draft or (verdict.invalid_draft and not verdict.num_accepted):
            return
        source, num_accepted = self.lane.source, verdict.num_accepted
        source.longest = max(source.longest, len(draft))
        source.accepted.observe(len(draft), num_accepted)
        if draft.parents:
            source.proposes_trees = True
        else:
            source.acceptance.observe(num_accepted, len(draft))
            self.own.observe(num_accepted, len(draft))
            if draft.logit_margins and not self.plan.uses_drafts_whole:
                source.margins.observe(draft.logit_margins, num_accepted)
        if self.agreement is not None and draft.num_proposed:
            self.agreement.observe(num_accepted, draft.num_proposed)
            if not (self.agreement.switch.is_off and self.num_tries_left):
                self.agreement.judge()
        if source.switch.is_off and not self.num_tries_left:
            source.switch.note(best_length(self._rates(min(START, self.limit)))[1])

    def trim(self, draft: Draft) -> Draft:
        """Cut a chain where its margins say that the rest is not worth its rows.

        Never in RATIO, where a draft is used whole.
        """
        choice = self._choice
        if (
            self.plan.uses_drafts_whole
            or not draft.logit_margins
            or draft.parents
            or choice is None
            or choice.reason not in (Reason.BEST, Reason.KEPT)
        ):
            return draft
        rates = rates_by_margin(self.lane, self.own, draft.logit_margins)
        allowed = (0, *range(min(self._fewest, len(draft)), len(rates)))
        best = max(allowed, key=rates.__getitem__)
        return draft.head(best) if rates[best] > MIN_GAIN * rates[len(draft)] else draft

    def _rates(self, longest: int) -> list[float]:
        return expected_rates(self.lane, self.own, longest)

    @property
    def _fewest(self) -> int:
        """Tokens that a cycle asks for if it asks for any; not more than workers take."""
        schedule = self.plan.num_draft_tokens
        return min(schedule.min_draft_tokens, self.limit) if isinstance(schedule, AutoLength) else 1

    def _disagreed(self, cycle: int) -> Choice | None:
        """Return no draft, or a try now and then, while the class disagrees with the source."""
        if self.agreement is None or not self.agreement.switch.is_off:
            return None
        schedule = self.plan.num_draft_tokens
        most = schedule.max_draft_tokens if isinstance(schedule, AutoLength) else schedule(cycle)
        tried = min(max(START, self._fewest), most, self.limit)
        if self.num_tries_left:
            self.num_tries_left -= 1
            return Choice(cycle, tried, self.tried)
        if self.pressure() is Pressure.NONE and self.agreement.switch.grants_probe():
            self.agreement.refresh()
            self.num_tries_left, self.tried = NUM_TRIED - 1, Reason.PROBE
            return Choice(cycle, tried, Reason.PROBE)
        return Choice(cycle, 0, Reason.LOW_AGREEMENT)

    def _planned(self, cycle: int) -> Choice:
        schedule = self.plan.num_draft_tokens
        if isinstance(schedule, AutoLength):
            choice = self._decide(cycle, schedule)
            self.lane.source.note_choice(choice.num_tokens, choice.gain)
            return choice
        choice = Choice(cycle, schedule(cycle), Reason.FIXED)
        return choice if self.plan.pressure is None else self._pressed(choice, self.pressure())

    def _decide(self, cycle: int, schedule: AutoLength) -> Choice:
        pressure = self.pressure()
        # What a cycle may ask for beside 0.
        lengths = range(self._fewest, min(schedule.max_draft_tokens, self.limit) + 1)
        most_of_others = min(schedule.policy_max or lengths[-1], self.limit)
        choice = self._unpressed(cycle, lengths, most_of_others, may_try=pressure is Pressure.NONE)
        return self._pressed(choice, pressure)

    def _pressed(self, choice: Choice, pressure: Pressure) -> Choice:
        cycle = choice.cycle
        if pressure is Pressure.NONE or not choice.num_tokens:
            return choice
        if pressure is Pressure.STOP:
            return Choice(cycle, 0, Reason.STOPPED, choice.gain)
        half = choice.num_tokens // 2
        return Choice(cycle, half if half >= self._fewest else 0, Reason.SHORTENED, choice.gain)

    def _unpressed(
        self, cycle: int, lengths: range, most_of_others: int, *, may_try: bool
    ) -> Choice:
        if self.num_tries_left:
            self.num_tries_left -= 1
            return Choice(cycle, _nearest(START, lengths), self.tried)
        source = self.lane.source
        if source.switch.is_off:
            return self._probe_or_nothing(cycle, lengths, may_try=may_try)
        if source.num_wanted < NUM_WARM_UP or not self.lane.verify.is_known:
            return Choice(cycle, _nearest(START, lengths), Reason.WARM_UP)
        choice = self._best_choice(cycle, lengths, most_of_others)
        if may_try and choice.reason is not Reason.SWITCHED_OFF:
            return self._explored(choice, lengths) or choice
        return choice

    def _probe_or_nothing(self, cycle: int, lengths: range, *, may_try: bool) -> Choice:
        self.present = None
        if may_try and self.lane.source.switch.grants_probe():
            self.lane.refresh()
            self.num_tries_left, self.tried = NUM_TRIED - 1, Reason.PROBE
            return Choice(cycle, _nearest(START, lengths), Reason.PROBE)
        return Choice(cycle, 0, Reason.SWITCHED_OFF, self.lane.source.last_gain)

    def _best_choice(self, cycle: int, lengths: range, most_of_others: int) -> Choice:
        """Return the length to stay with; one that is not 0 pays."""
        source = self.lane.source
        # Beyond twice the longest draft that was seen the tables know too little.
        known = max(START, 2 * source.longest)
        reach = max(min(lengths[-1], known), lengths[0])
        others = min(most_of_others, known)
        rates = self._rates(max(reach, others))
        # Whether others draft must not hang on the lengths that this request allows.
        source.switch.note(best_length(rates[: others + 1])[1])
        best = max(range(lengths[0], reach + 1), key=rates.__getitem__)
        gain = rates[best] / rates[0]
        if source.switch.is_off:
            return Choice(cycle, 0, Reason.SWITCHED_OFF, gain)
        if gain < MIN_GAIN:
            best = 0
        self.num_since_move += 1
        present = self.present and min(max(self.present, lengths[0]), reach)
        if present is not None and best != present:
            promise = rates[best] / rates[present]
            if promise <= MIN_GAIN or self.num_since_move < MIN_CYCLES_BETWEEN_MOVES:
                best = present
        if best != self.present:
            self.present, self.num_since_move = best, 0
            reason = Reason.BEST if best else Reason.NO_GAIN
        else:
            reason = Reason.KEPT if best else Reason.NO_GAIN
        return Choice(cycle, best, reason, rates[best] / rates[0] if best else gain)

    def _explored(self, choice: Choice, lengths: range) -> Choice | None:
        """Return another length for this cycle now and then: none, or one that is longer."""
        young = self.lane.source.num_wanted < NUM_YOUNG
        share = EXPLORE_YOUNG if young else EXPLORE
        if not choice.num_tokens:
            share /= NUM_TRIED  # one draw tries as many cycles
        drawn = uniform(self.sequence_id, choice.cycle)
        if drawn >= share:
            return None
        if not choice.num_tokens:
            self.num_tries_left, self.tried = NUM_TRIED - 1, Reason.EXPLORED
            return Choice(choice.cycle, _nearest(START, lengths), Reason.EXPLORED, choice.gain)
        longer = _nearest(2 * choice.num_tokens, lengths)
        if drawn >= share / 2 and longer == choice.num_tokens:
            return None
        tried = 0 if drawn < share / 2 else longer
        return Choice(choice.cycle, tried, Reason.EXPLORED, choice.gain)


def _nearest(length: int, lengths: range) -> int:
    return min(max(length, lengths[0]), lengths[-1])
