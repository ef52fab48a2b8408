"""The choice of a draft length: against brute force, over simulated cycles, and what it may see."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from orchestrator.acceptance_estimate import SequenceAcceptance, SourceAcceptance
from orchestrator.draft_length import (
    NUM_WARM_UP,
    START,
    Choice,
    DraftLength,
    Reason,
    uniform,
)
from orchestrator.estimates import Average, Lane
from orchestrator.expected_rate import expected_rates
from orchestrator.off_switch import MIN_GAIN, NUM_BEFORE_OFF
from orchestrator.policy import AutoLength, ConstantLength, SpeculationPlan
from orchestrator.pressure import Pressure
from outrider.draft import Draft
from outrider.policy import ON
from outrider.sampling import AcceptanceRule
from tests.unit.orchestrator.test_estimates import verdict

PLAN = SpeculationPlan(("model",), AutoLength(16), 0.1, False, ON)
STEADY = (Reason.BEST, Reason.KEPT, Reason.NO_GAIN, Reason.SWITCHED_OFF, Reason.WARM_UP)


def plan_of(
    most: int = 16,
    rule: AcceptanceRule = AcceptanceRule.COUPLED,
    *,
    fewest: int = 1,
    policy_max: int | None = None,
) -> SpeculationPlan:
    length = AutoLength(most, fewest, policy_max)
    return SpeculationPlan(("model",), length, 0.1, False, ON, rule)


def known_lane(
    probs: list[float],
    *,
    pass_ms: Callable[[int], float],
    beside_ms: float = 1.0,
    wait_ms: Callable[[int], float] = lambda k: 0.0,
    arrival: float = 1.0,
) -> Lane:
    """A lane in which everything is known: a sequence alone in its passes."""
    lane = Lane()
    for rows in range(1, 18):
        lane.verify.by_rows.observe(rows, pass_ms(rows))
        lane.draft.wait.observe(rows, wait_ms(rows))
    lane.verify.beside = Average(beside_ms, 1000)
    lane.verify.own_rows, lane.verify.num_leases = Average(1.0, 1000), Average(1.0, 1000)
    lane.draft.arrival = Average(arrival, 1000)
    lane.source.acceptance = SourceAcceptance(list(probs), [1000] * len(probs))
    lane.source.num_wanted, lane.source.longest = 1000, 16
    return lane


def quiet_id(num_cycles: int = 40) -> str:
    """A request id that explores nothing for a while."""
    return next(
        name
        for name in map(str, range(1000))
        if all(uniform(name, cycle) > 1 / 64 for cycle in range(num_cycles))
    )


COSTS: dict[str, Callable[[int], float]] = {
    "memory-bound": lambda rows: 20.0,
    "compute-bound": lambda rows: 5.0 * rows,
    "in between": lambda rows: 10.0 + 2.0 * rows,
    "knee": lambda rows: 10.0 + 6.0 * max(rows - 6, 0),
}


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("probs", [[0.95] * 16, [0.8] * 16, [0.7, 0.5, 0.3] + [0.1] * 13, [0.02]])
@pytest.mark.parametrize(("wait_per_token_ms", "arrival"), [(0.0, 1.0), (1.5, 1.0), (0.0, 0.5)])
def test_the_choice_is_what_brute_force_finds(cost, probs, wait_per_token_ms, arrival):
    lane = known_lane(
        probs, pass_ms=COSTS[cost], wait_ms=lambda k: wait_per_token_ms * k, arrival=arrival
    )
    rates = []
    for k in range(16):
        tokens, survival = 1.0, 1.0
        for position in range(k):
            survival *= probs[min(position, len(probs) - 1)]
            tokens += arrival * survival
        time_ms = 1 + arrival * COSTS[cost](1 + k) + (1 - arrival) * COSTS[cost](1)
        rates.append(tokens / (time_ms + wait_per_token_ms * k))
    best = max(range(1, 16), key=rates.__getitem__)
    choice = DraftLength(plan_of(15), quiet_id(), lane).choose(1)
    if rates[best] < 1.03 * rates[0]:
        assert (choice.num_tokens, choice.reason) == (0, Reason.NO_GAIN)
    else:
        assert choice.reason is Reason.BEST
        assert rates[choice.num_tokens] == pytest.approx(rates[best])
        assert choice.gain == pytest.approx(rates[best] / rates[0])


def test_a_full_pass_makes_drafts_shorter():
    """Rows are free up to 64: alone a draft of 16 pays, among 15 others one of 3."""
    lengths = []
    for num_others in (0, 15):
        lane = known_lane([0.8] * 16, pass_ms=lambda rows: 20.0)
        for rows in range(17, 300, 8):
            lane.verify.by_rows.observe(rows, 20.0 + 2 * max(rows - 64, 0))
        lane.verify.other_rows = Average(float(num_others), 1000)
        lane.verify.num_leases = Average(1.0 + num_others, 1000)
        lengths.append(DraftLength(plan_of(), quiet_id(), lane).choose(1).num_tokens)
    assert lengths == [16, 3]


@pytest.mark.parametrize(("changed", "moves"), [(0.72, False), (0.95, True)])
def test_a_length_is_kept_unless_another_promises_more_than_three_percent(changed, moves):
    lane = known_lane([0.7] * 16, pass_ms=COSTS["in between"])
    length = DraftLength(plan_of(), quiet_id(), lane)
    first = length.choose(1)
    lane.source.acceptance.probs = [changed] * 16
    later = [length.choose(cycle) for cycle in range(2, 12)]
    assert all(choice.num_tokens == first.num_tokens for choice in later[:7]), "not at once"
    assert (later[-1].num_tokens > first.num_tokens) is moves
    assert later[0].reason is Reason.KEPT


def test_a_length_never_goes_beyond_twice_what_was_seen_nor_a_limit():
    lane = known_lane([1.0] * 16, pass_ms=COSTS["memory-bound"])
    lane.source.longest = 5
    assert DraftLength(plan_of(64), quiet_id(), lane).choose(1).num_tokens == 10
    lane.source.longest = 50
    assert DraftLength(plan_of(7), quiet_id(), lane).choose(1).num_tokens == 7
    assert DraftLength(plan_of(64), quiet_id(), lane, limit=3).choose(1).num_tokens == 3


def test_a_request_that_names_a_length_gets_exactly_that_and_is_learned_from():
    lane = known_lane([0.0], pass_ms=COSTS["compute-bound"])
    plan = SpeculationPlan((), ConstantLength(5), 0.1, False, ON)
    length = DraftLength(plan, "r", lane, limit=2, pressure=lambda: Pressure.STOP)
    assert [length.choose(cycle) for cycle in range(3)] == [
        Choice(cycle, 5, Reason.FIXED) for cycle in range(3)
    ]
    before = lane.source.acceptance.conditional(0)
    length.observe(Draft((1, 2), "model"), verdict(2, 2))
    assert lane.source.acceptance.conditional(0) > before
    assert lane.source.num_choices == 0


def test_a_wait_ends_where_a_draft_would_not_pay_even_if_all_of_it_were_accepted():
    lane = known_lane([0.5], pass_ms=lambda rows: 10.0 + rows)  # and 1 ms beside
    length = DraftLength(plan_of(), "r", lane)
    assert length.max_wait_s(Choice(1, 4, Reason.KEPT)) == pytest.approx((5 * 12 / 1.03 - 16) / 1e3)
    assert length.max_wait_s(Choice(1, 4, Reason.FIXED)) is None
    assert length.max_wait_s(Choice(1, 4, Reason.WARM_UP)) is None
    dear = known_lane([0.5], pass_ms=lambda rows: 40.0 * rows)
    assert DraftLength(plan_of(), "r", dear).max_wait_s(Choice(1, 4, Reason.PROBE)) == 0


def test_pressure_shortens_and_then_stops():
    level = [Pressure.NONE]
    lane = known_lane([0.9] * 16, pass_ms=COSTS["memory-bound"])
    length = DraftLength(plan_of(8), quiet_id(), lane, pressure=lambda: level[0])
    assert length.choose(1).num_tokens == 8
    level[0] = Pressure.SHORTEN
    assert (length.choose(2).num_tokens, length.choose(2).reason) == (4, Reason.SHORTENED)
    level[0] = Pressure.STOP
    assert (length.choose(3).num_tokens, length.choose(3).reason) == (0, Reason.STOPPED)
    level[0] = Pressure.NONE
    assert length.choose(4).num_tokens == 8


def test_trees_are_judged_by_their_nodes():
    lane = known_lane([0.0], pass_ms=COSTS["memory-bound"])
    lane.source.proposes_trees = True
    for nodes, accepted in ((4, 1.0), (8, 1.6), (16, 1.62)):
        lane.source.accepted.observe(nodes, accepted)
    lane.verify.by_rows = known_lane([0.0], pass_ms=lambda rows: 20 + 0.5 * rows).verify.by_rows
    assert DraftLength(plan_of(), quiet_id(), lane).choose(1).num_tokens == 8


@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("probs", [[0.95] * 16, [0.6] * 16, [0.7, 0.5, 0.3] + [0.1] * 13])
@pytest.mark.parametrize(("fewest", "most"), [(1, 3), (5, 16), (6, 6), (12, 16), (2, 4)])
def test_within_a_request_s_range_the_choice_is_the_best_of_it_or_none(cost, probs, fewest, most):
    lane = known_lane(probs, pass_ms=COSTS[cost])
    free = expected_rates(lane, SequenceAcceptance(), 16)
    best = max(range(fewest, most + 1), key=free.__getitem__)
    plan = plan_of(most, fewest=fewest, policy_max=16)
    choice = DraftLength(plan, quiet_id(), lane).choose(1)
    if free[best] < MIN_GAIN * free[0]:
        assert (choice.num_tokens, choice.reason) == (0, Reason.NO_GAIN)
    else:
        assert fewest <= choice.num_tokens <= most
        assert free[choice.num_tokens] == pytest.approx(free[best])
        assert choice.gain == pytest.approx(free[best] / free[0])


def test_a_request_that_insists_on_what_does_not_pay_switches_nothing_off_for_others():
    """Three of four draft tokens pay; at least 16 never do."""
    lane = known_lane([0.7] * 4 + [0.0] * 12, pass_ms=COSTS["in between"])
    stubborn = DraftLength(plan_of(fewest=16), quiet_id(200), lane)
    for cycle in range(1, 2 * NUM_BEFORE_OFF):
        assert stubborn.choose(cycle).reason is Reason.NO_GAIN
    assert not lane.source.switch.is_off
    assert DraftLength(plan_of(), quiet_id(), lane).choose(1).num_tokens > 0


def test_one_that_forbids_what_pays_switches_nothing_off_either():
    lane = known_lane([0.9] * 16, pass_ms=lambda rows: 20.0 + (rows > 1) * 20.0)
    modest = DraftLength(plan_of(1, policy_max=16), quiet_id(200), lane)
    for cycle in range(1, 2 * NUM_BEFORE_OFF):
        assert modest.choose(cycle).reason is Reason.NO_GAIN
    assert not lane.source.switch.is_off


@pytest.mark.parametrize(("fewest", "most"), [(1, 2), (6, 16), (9, 9)])
def test_every_cycle_keeps_to_the_range(fewest, most):
    """In warm-up, while trying, under pressure: as many as that, or none."""
    lane = Lane()
    level = [Pressure.NONE]
    plan = plan_of(most, fewest=fewest, policy_max=16)
    length = DraftLength(plan, "r", lane, pressure=lambda: level[0])
    rng = random.Random(1)
    lengths = set()
    for cycle in range(1, 1500):
        level[0] = Pressure.SHORTEN if cycle % 7 == 0 else Pressure.NONE
        choice = length.choose(cycle)
        k = choice.num_tokens
        lengths.add(k)
        assert k == 0 or fewest <= k <= most, choice
        accepted = 0
        while accepted < k and rng.random() < (0.8 if cycle < 700 else 0.0):
            accepted += 1
        draft, ms = Draft(tuple(range(k)), "model"), 10.0 + k
        decided = verdict(k, accepted, compute_ms=ms, round_trip_ms=ms + 1)
        lane.verify.observe(draft, decided)
        if k:
            length.note_draft(choice, arrived=True, wait_ms=0.0)
            length.observe(draft, decided)
    assert 0 in lengths
    assert len(lengths) > 1
    assert lane.source.switch.is_off, "the off switch still judges"


def test_a_range_beyond_what_workers_take_ends_there():
    lane = known_lane([0.9] * 16, pass_ms=COSTS["memory-bound"])
    length = DraftLength(plan_of(16, fewest=12), quiet_id(), lane, limit=8)
    assert length.choose(1).num_tokens == 8


@pytest.mark.parametrize(("most_of_others", "num_tokens"), [(8, 8), (5, 5), (4, 0), (0, 0)])
def test_who_gives_way_below_its_range_goes_without(most_of_others, num_tokens):
    lane = known_lane([0.9] * 16, pass_ms=COSTS["memory-bound"])
    plan = plan_of(16, fewest=5)
    length = DraftLength(plan, quiet_id(), lane, most_tokens=lambda: most_of_others)
    choice = length.choose(1)
    assert (choice.num_tokens, choice.reason) == (num_tokens, Reason.GAVE_WAY)


@dataclass(slots=True)
class Play:
    """Cycles of one lane with a made-up drafter and verifier; time is what they say it is."""

    right: Callable[[int], float]
    """Chance of a draft token in a cycle."""
    pass_ms: Callable[[int], float] = COSTS["in between"]
    wait_ms: Callable[[int], float] = lambda k: 0.0
    most: int = 16
    lane: Lane = field(default_factory=Lane)
    rng: random.Random = field(default_factory=lambda: random.Random(7))

    def run(self, num_cycles: int, request_id: str = "r") -> list[Choice]:
        length = DraftLength(plan_of(self.most), request_id, self.lane)
        length.observe(Draft(), verdict(0))
        choices = []
        for cycle in range(1, num_cycles + 1):
            choice = length.choose(cycle)
            k, accepted = choice.num_tokens, 0
            while accepted < k and self.rng.random() < self.right(cycle):
                accepted += 1
            if k:
                length.note_draft(choice, arrived=True, wait_ms=self.wait_ms(k))
            else:
                length.note_no_draft()
            draft = Draft(tuple(range(k)), "model")
            ms = self.pass_ms(1 + k)
            decided = verdict(k, accepted, compute_ms=ms, round_trip_ms=ms + 1)
            self.lane.verify.observe(draft, decided)
            if k:
                length.observe(draft, decided)
            choices.append(choice)
        return choices


def steady(choices: list[Choice]) -> list[int]:
    return [choice.num_tokens for choice in choices if choice.reason in STEADY]


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("right", [0.1, 0.17, 0.19, 0.5, 0.7])
def test_at_a_pivot_the_length_stays_calm(seed, right):
    """Case 40: at most one change in 20 cycles, always within bounds."""
    played = Play(lambda cycle: right, rng=random.Random(seed)).run(2000, f"r{seed}")
    lengths = steady(played)
    assert sum(a != b for a, b in zip(lengths, lengths[1:], strict=False)) <= 2000 / 20
    assert all(0 <= choice.num_tokens <= 16 for choice in played)


def test_a_good_drafter_soon_gets_the_longest_drafts():
    """Case 40."""
    played = Play(lambda cycle: 1.0).run(200)
    lengths = steady(played)
    assert lengths[:NUM_WARM_UP] == [START] * NUM_WARM_UP
    assert lengths[40:] == [16] * len(lengths[40:])


@pytest.mark.parametrize("cost", COSTS)
def test_a_useless_drafter_is_off_after_a_bounded_number_of_cycles(cost):
    played = Play(lambda cycle: 0.0, COSTS[cost]).run(2000)
    reasons = [choice.reason for choice in played]
    first_off = reasons.index(Reason.SWITCHED_OFF)
    # Warm-up, then the count; tries are not counted and come on top.
    assert first_off <= NUM_WARM_UP + NUM_BEFORE_OFF + 12
    assert set(reasons[first_off:]) == {Reason.SWITCHED_OFF, Reason.PROBE}
    drafts = [choice.num_tokens > 0 for choice in played]
    assert sum(drafts[-1024:]) <= 4 * 4, "in the end four cycles of 256"
    assert sum(drafts[first_off:400]) <= 4 * 9


def test_the_switch_counts_over_all_requests():
    play = Play(lambda cycle: 0.0, COSTS["memory-bound"])
    for number in range(15):
        play.run(5, f"r{number}")
    assert play.lane.source.switch.is_off
    assert {c.reason for c in play.run(20, "new")} <= {Reason.SWITCHED_OFF, Reason.PROBE}


def test_a_slow_drafter_is_off_though_it_is_right():
    """Cases 40 and 41: five tokens in 63 ms are fewer than one in 11."""
    play = Play(lambda cycle: 1.0, lambda rows: 10.0, lambda k: 52.0, most=4)
    played = play.run(200)
    assert played[-1].reason is Reason.SWITCHED_OFF
    assert sum(choice.num_tokens > 0 for choice in played) <= NUM_WARM_UP + NUM_BEFORE_OFF + 12


@pytest.mark.parametrize("cost", ["memory-bound", "in between"])  # else no draft ever pays
def test_a_drafter_that_was_bad_for_200_cycles_is_used_again_within_50(cost):
    """Case 40."""
    played = Play(lambda cycle: float(cycle > 200), COSTS[cost]).run(400)
    reasons = [choice.reason for choice in played]
    assert reasons[199] is Reason.SWITCHED_OFF
    back = next(c.cycle for c in played if c.cycle > 200 and c.reason in STEADY and c.num_tokens)
    assert back <= 250
    assert played[-1].num_tokens > 0


def test_a_probe_of_a_drafter_that_became_fast_ends_its_slowness():
    slow = [52.0]
    play = Play(lambda cycle: 1.0, lambda rows: 10.0, lambda k: slow[0], most=4)
    assert play.run(100)[-1].reason is Reason.SWITCHED_OFF
    slow[0] = 0.0
    assert play.run(200)[-1].num_tokens == 4


def test_what_is_tried_follows_from_the_request_alone():
    def tried(request_id: str) -> list[tuple[int, int]]:
        played = Play(lambda cycle: 0.7).run(600, request_id)
        return [(c.cycle, c.num_tokens) for c in played if c.reason is Reason.EXPLORED]

    assert tried("a") == tried("a") != tried("b")
    lengths = {length for _, length in tried("a")}
    assert 0 in lengths, "what a cycle takes without drafts must stay known"
    assert max(lengths) > 3, "so must what longer drafts are worth"


def test_a_sequence_for_which_nothing_pays_is_tried_while_others_gain():
    lane = known_lane([0.1], pass_ms=COSTS["in between"])
    length = DraftLength(plan_of(), "r", lane)
    reasons = []
    for cycle in range(1, 2000):
        reasons.append(length.choose(cycle).reason)
        lane.source.switch.note(2.0)  # another request's cycle
    assert set(reasons) == {Reason.NO_GAIN, Reason.EXPLORED}
    assert reasons.count(Reason.EXPLORED) % 4 == 0, "four cycles in a row, so that it catches up"


MARGINS = (9.0, 8.0, 0.1, 0.1)


def lane_with_margins() -> Lane:
    """Wide margins are right, narrow ones are not; a row costs as much as a pass."""
    lane = known_lane([0.6] * 4, pass_ms=lambda rows: 5.0 + 5.0 * rows)
    rng = random.Random(3)
    for _ in range(600):
        margins = tuple(rng.choice((0.1, 9.0)) for _ in range(4))
        right = [margin > 1 or rng.random() < 0.05 for margin in margins]
        lane.source.margins.observe(margins, [*right, False].index(False))
    return lane


@pytest.mark.parametrize(("fewest", "kept"), [(1, 2), (3, 3), (4, 4)])
def test_margins_shorten_no_draft_below_the_range(fewest, kept):
    lane = lane_with_margins()
    lane.source.acceptance.probs = [0.95] * 4  # so that drafts of any length promise something
    length = DraftLength(plan_of(fewest=fewest), quiet_id(), lane)
    assert length.choose(1).reason is Reason.BEST
    draft = Draft((1, 2, 3, 4), "model", logit_margins=MARGINS)
    assert length.trim(draft).token_ids == draft.token_ids[:kept]


@pytest.mark.parametrize(
    ("rule", "kept"),
    [
        (AcceptanceRule.COUPLED, 2),
        (AcceptanceRule.BLOCK, 4),
        (AcceptanceRule.REJECTION, 4),
    ],
)
def test_margins_shorten_drafts_but_never_in_ratio(rule, kept):
    length = DraftLength(plan_of(rule=rule), quiet_id(), lane_with_margins())
    assert length.choose(1).reason is Reason.BEST
    draft = Draft((1, 2, 3, 4), "model", logit_margins=MARGINS)
    assert length.trim(draft).token_ids == draft.token_ids[:kept]


@pytest.mark.parametrize("rule", [AcceptanceRule.BLOCK, AcceptanceRule.REJECTION])
def test_in_ratio_the_length_does_not_depend_on_what_the_present_draft_drew(rule):
    """Contract 18: fixed before the first draw, and the same whatever is drawn and accepted.

    The loop asks for the length of the next cycle while the present one is verified, and again when
    the next one begins; what the drafts of the two hold, and what came of the first, must not
    change it.
    """
    chosen = set()
    for drawn in range(64):
        rng = random.Random(drawn)
        length = DraftLength(plan_of(rule=rule), "r", known_lane([0.7] * 16, pass_ms=COSTS["knee"]))
        present = length.choose(1)
        ahead = length.choose(2)  # while cycle 1 is verified
        margins = tuple(rng.uniform(0, 10) for _ in range(present.num_tokens))
        tokens = tuple(rng.randrange(100) for _ in range(present.num_tokens))
        draft = Draft(tokens, "model", logit_margins=margins)
        accepted = rng.randrange(present.num_tokens + 1)
        length.observe(draft, verdict(present.num_tokens, accepted))
        assert length.choose(2) is ahead
        ahead_draft = Draft((1,) * ahead.num_tokens, "model", logit_margins=(0.0,))
        assert length.trim(ahead_draft) is ahead_draft, "and it is used whole"
        chosen.add((present.num_tokens, ahead.num_tokens))
        assert not length.lane.source.margins.positions
    assert len(chosen) == 1
