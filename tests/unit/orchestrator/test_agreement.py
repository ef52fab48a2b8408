"""A class stops drafting where too little is accepted, with patience, and tries again."""

import pytest

from orchestrator.agreement import Agreement, Agreements
from orchestrator.draft_length import NUM_TRIED, START, DraftLength, Reason
from orchestrator.estimates import Lane
from orchestrator.off_switch import BETWEEN_EAGER, NUM_BEFORE_OFF
from orchestrator.policy import AutoLength, ConstantLength, LengthSchedule, SpeculationPlan
from orchestrator.pressure import Pressure
from outrider.draft import Draft
from outrider.policy import ON, MinAgreement, PressureLimits
from tests.unit.orchestrator.test_estimates import verdict


def length_of(
    schedule: LengthSchedule | AutoLength, limits: MinAgreement, **more: object
) -> DraftLength:
    plan = SpeculationPlan(("model",), schedule, 0.1, False, ON)
    return DraftLength(plan, "s", Lane(), agreement=Agreement(limits), **more)  # type: ignore[arg-type]


def feed(length: DraftLength, num_accepted: int, *, of: int = 4) -> None:
    """One verified draft, of which so many tokens were accepted."""
    length.observe(Draft(tuple(range(of)), "model"), verdict(of, num_accepted))


def test_the_rate_is_accepted_over_drafted_tokens():
    agreement = Agreement(MinAgreement(rate=0.5))
    assert agreement.rate == 1.0, "nothing speaks against it yet"
    for num_accepted, num_drafted in [(4, 4), (0, 2), (1, 2)]:
        agreement.observe(num_accepted, num_drafted)
    assert agreement.rate == pytest.approx(5 / 8)


@pytest.mark.parametrize("schedule", [ConstantLength(4), ConstantLength(2), AutoLength(16)])
def test_so_many_bad_drafts_in_a_row_stop_them(schedule: LengthSchedule | AutoLength):
    length = length_of(schedule, MinAgreement(rate=0.5))
    for cycle in range(NUM_BEFORE_OFF - 1):
        feed(length, 1)
        assert length.choose(cycle).num_tokens > 0
    feed(length, 1)
    choices = [length.choose(cycle) for cycle in range(100, 100 + BETWEEN_EAGER)]
    assert {(each.num_tokens, each.reason) for each in choices[:-1]} == {(0, Reason.LOW_AGREEMENT)}
    assert choices[-1].reason is Reason.PROBE
    most = schedule(0) if not isinstance(schedule, AutoLength) else 16
    assert choices[-1].num_tokens == min(START, most)


def test_good_drafts_between_bad_ones_keep_it_on():
    length = length_of(ConstantLength(4), MinAgreement(rate=0.5))
    for _ in range(50):
        feed(length, 4)
        feed(length, 1)
    assert length.agreement is not None
    assert not length.agreement.switch.is_off


def off_and_probing(limits: MinAgreement) -> tuple[DraftLength, int]:
    """A length whose class is off, at the first of the tries."""
    length = length_of(ConstantLength(4), limits)
    for _ in range(NUM_BEFORE_OFF):
        feed(length, 1)
    cycle = 0
    while length.choose(cycle).reason is not Reason.PROBE:
        cycle += 1
    return length, cycle


@pytest.mark.parametrize(
    ("resume", "comes_back"),
    [(0.45, True), (None, False), (0.9, False)],  # None: 0.54
)
def test_tries_bring_it_back_from_a_higher_rate_on(resume: float | None, comes_back: bool):
    """Four tries that are wholly accepted lift a rate of 0.25 to 0.5."""
    length, cycle = off_and_probing(MinAgreement(rate=0.45, resume=resume))
    for each in range(cycle, cycle + NUM_TRIED):
        assert length.choose(each).num_tokens == 4
        feed(length, 4)
    agreement = length.agreement
    assert agreement is not None
    assert agreement.rate == pytest.approx(0.5)
    assert agreement.switch.is_off is not comes_back
    assert length.choose(cycle + NUM_TRIED).reason is (
        Reason.FIXED if comes_back else Reason.LOW_AGREEMENT
    )


def test_nothing_is_tried_under_pressure():
    length, cycle = off_and_probing(MinAgreement(rate=0.5))
    for each in range(NUM_TRIED):
        length.choose(cycle + each)
    length.pressure = lambda: Pressure.SHORTEN
    reasons = {length.choose(cycle + NUM_TRIED + each).reason for each in range(500)}
    assert reasons == {Reason.LOW_AGREEMENT}


def test_a_policy_that_was_read_again_changes_the_limits_and_keeps_what_was_seen():
    known = Agreements()
    first = known.of("t", "class", "model", MinAgreement(rate=0.5))
    assert first is not None
    first.observe(1, 4)
    again = known.of("t", "class", "model", MinAgreement(rate=0.2))
    assert again is first
    assert (again.rate, again.limits.rate) == (0.25, 0.2)
    assert known.of("t", "other", "model", MinAgreement(rate=0.5)) is not first
    assert known.of("t", "class", "model", None) is None


def test_a_fixed_length_is_pressed_only_where_its_class_says_so():
    told = SpeculationPlan(("model",), ConstantLength(6), 0.1, False, ON)
    pressed = SpeculationPlan(
        ("model",), ConstantLength(6), 0.1, False, ON, pressure=PressureLimits()
    )
    for plan, level, expected in [
        (told, Pressure.STOP, (6, Reason.FIXED)),
        (pressed, Pressure.NONE, (6, Reason.FIXED)),
        (pressed, Pressure.SHORTEN, (3, Reason.SHORTENED)),
        (pressed, Pressure.STOP, (0, Reason.STOPPED)),
    ]:
        choice = DraftLength(plan, "s", pressure=lambda level=level: level).choose(1)
        assert (choice.num_tokens, choice.reason) == expected
