"""The mixed load: who comes when, under which policy, and what its checks let through."""

from collections import Counter

import pytest

from bench.mixed import checks
from bench.mixed.classes import REAL, SLEEPING, LoadClass
from bench.mixed.policies import policy_text
from bench.mixed.replay import Answered
from bench.mixed.schedule import CONTROL_BLOCK, Arrival, schedule
from outrider.packet.finished import Groups
from outrider.packet.matrix import worth
from outrider.policy import SpeculationOptions, Traits, decide, parse_policy
from tests.unit.packet.made import control, drafted, receipt

PROTECTED = next(each for each in SLEEPING if each.name == "interactive")


def test_a_seed_gives_the_same_arrivals_and_another_others():
    one = schedule(SLEEPING, per_s=5, span_s=60, seed=1)
    assert one == schedule(SLEEPING, per_s=5, span_s=60, seed=1)
    assert one != schedule(SLEEPING, per_s=5, span_s=60, seed=2)
    assert [each.at_s for each in one] == sorted(each.at_s for each in one)
    assert abs(len(one) - 300) < 5 * 300**0.5  # five deviations of a Poisson count
    for each in one:
        low, high = each.of.max_tokens
        assert low <= each.max_tokens <= high
        assert each.prompt in each.of.prompts[each.language]


def test_a_third_of_every_class_is_the_control_at_any_time():
    arrivals = schedule(SLEEPING, per_s=5, span_s=60, seed=3)
    for of in SLEEPING:
        own = [each.is_control for each in arrivals if each.of is of]
        blocks = [own[i : i + CONTROL_BLOCK] for i in range(0, len(own), CONTROL_BLOCK)]
        assert all(sum(block) == 1 for block in blocks[:-1])
        assert len({tuple(block) for block in blocks[:-1]}) == CONTROL_BLOCK, "drawn, not in turn"


def test_classes_come_as_often_as_they_are_to():
    counts = Counter(each.of.name for each in schedule(SLEEPING, per_s=20, span_s=100, seed=4))
    for of in SLEEPING:
        assert counts[of.name] / counts.total() == pytest.approx(of.share, abs=0.05)


@pytest.mark.parametrize("classes", [SLEEPING, REAL])
def test_the_policy_enables_whom_it_is_told_to(classes):
    policy = parse_policy(policy_text("v1", classes, ["copying"], lookup=True))
    for of in classes:
        traits = Traits(metadata={"workload": of.name})
        decision = decide(policy, traits, SpeculationOptions(), "r")
        assert (decision.class_name, decision.reason) == (
            of.name,
            "on" if of.name == "copying" else "policy_target_only",
        )
        if of.name == "copying":
            assert decision.sources == of.sources
    unknown = decide(policy, Traits(), SpeculationOptions(), "r")
    assert unknown.reason == "unclassified"


GAINING = worth(Groups.of([*[drafted()] * 4, *[control()] * 4]))
LOSING = worth(Groups.of([*[drafted(total_ms=900.0)] * 4, *[control()] * 4]))
NAMES = [each.name for each in SLEEPING if each.gains]


def test_those_must_be_enabled_that_can_be_calculated_to_gain():
    trial = {each.name: GAINING for each in SLEEPING}
    assert checks.enabled_are_those_that_gained(NAMES, trial, SLEEPING).verdict == "pass"
    for wrong in ([], NAMES[1:], [*NAMES, "creative"]):
        assert checks.enabled_are_those_that_gained(wrong, trial, SLEEPING).verdict == "fail"
    assert checks.enabled_are_those_that_gained([], trial, REAL).verdict == "pass", "nobody knows"


def test_what_is_enabled_must_gain_in_the_run_itself():
    assert checks.enabled_gain(["a"], {"a": GAINING, "b": LOSING}).verdict == "pass"
    assert checks.enabled_gain(["a", "b"], {"a": GAINING, "b": LOSING}).verdict == "fail"
    few = worth(Groups.of([drafted()]))
    assert checks.enabled_gain(["a", "b"], {"a": GAINING, "b": few}).verdict == "not run"
    assert checks.enabled_gain([], {"a": GAINING}).verdict == "not run"


def test_others_have_no_drafts():
    assert checks.others_have_no_drafts(["chat"], [drafted()]).verdict == "pass"
    assert checks.others_have_no_drafts(["copying"], [drafted()]).verdict == "fail"


def protected(num: int, **changed: object) -> list:
    policy = {"workload_class": PROTECTED.name}
    return [control(policy=policy, **changed) for _ in range(num)]


def test_protected_traffic_may_be_slowed_within_its_budget_only():
    def verdict(**changed: object) -> str:
        found = checks.protected_is_not_delayed(
            PROTECTED, protected(5, **changed), (protected(5), protected(5)), 0.1
        )
        return found.verdict

    assert verdict() == verdict(total_ms=159.0) == verdict(ttft_ms=54.0, total_ms=154.0) == "pass"
    assert verdict(total_ms=161.0) == "fail", "later tokens"
    assert verdict(ttft_ms=56.0, total_ms=156.0) == "fail", "the first one"
    few = checks.protected_is_not_delayed(
        PROTECTED, protected(5), (protected(4), protected(5)), 0.1
    )
    assert few.verdict == "not run"


def test_a_machine_that_became_slower_weighs_on_both_sides():
    def found(later_ms: float) -> checks.Evidence:
        baselines = (protected(5), protected(5, total_ms=later_ms))
        return checks.protected_is_not_delayed(
            PROTECTED, protected(5, total_ms=170.0), baselines, 0.1
        )

    assert found(150.0).verdict == "fail"
    assert found(170.0).verdict == "pass"
    assert "came after took 1.00 and 1.20 times" in found(170.0).finding


def answered(request_id: str, **changed: object) -> Answered:
    of: LoadClass = PROTECTED
    arrival = Arrival(0, 0.0, of, "en", (1,), 8, is_control=False)
    values: dict[str, object] = {
        "status": "OK",
        "num_tokens": 11,
        "ttft_ms": 50.0,
        "total_ms": 151.0,
        "late_ms": 0.0,
    }
    return Answered(arrival, request_id, **(values | changed))  # type: ignore[arg-type]


def test_every_request_must_be_completed():
    assert checks.completed({"a": [answered("r")], "b": [answered("r")]}).verdict == "pass"
    lost = checks.completed({"a": [answered("r"), answered("s", status="UNAVAILABLE")]})
    assert lost.verdict == "fail"
    assert lost.finding.endswith("UNAVAILABLE 1")


@pytest.mark.parametrize(
    ("changed", "verdict"),
    [({}, "pass"), ({"total_ms": 500.0}, "fail"), ({"num_tokens": 10}, "fail")],
)
def test_clients_must_see_what_receipts_say(changed, verdict):
    requests = [control(request_id="r")]
    seen = checks.clients_see_what_receipts_say([answered("r", **changed)], requests)
    assert seen.verdict == verdict


def test_a_receipt_that_is_missing_is_no_agreement():
    assert receipt().request_id == "r"
    missing = checks.clients_see_what_receipts_say([answered("other")], [control()])
    assert missing.verdict == "fail"
