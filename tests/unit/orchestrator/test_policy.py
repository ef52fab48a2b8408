"""What a client asks of speculation, what settings allow, and the plan that comes of both."""

import pytest

from orchestrator.policy import AutoLength, ConstantLength, SpeculationPlan, plan_of
from outrider.errors import InvalidField
from outrider.policy import (
    Decision,
    Fallbacks,
    MinAgreement,
    Policy,
    PressureLimits,
    Shadow,
    SpeculationOptions,
    Threshold,
    Traits,
    decide,
    parse_policy,
    policy_of_flags,
)
from outrider.sampling import AcceptanceRule

POLICY = policy_of_flags(
    sources=("model",), num_draft_tokens=4, max_draft_tokens=8, draft_wait_ms=200.0
)


def decision(policy: Policy, options: SpeculationOptions) -> Decision:
    return decide(policy, Traits(num_prompt_tokens=1, max_tokens=1), options, "r")


def plan(policy: Policy, options: SpeculationOptions) -> SpeculationPlan:
    return plan_of(decision(policy, options))


@pytest.mark.parametrize(
    ("policy", "options", "sources", "length", "lookup"),
    [
        pytest.param(POLICY, SpeculationOptions(), ("model",), 4, True, id="defaults"),
        pytest.param(
            POLICY, SpeculationOptions(num_draft_tokens=8), ("model",), 8, True, id="longest"
        ),
        pytest.param(
            POLICY, SpeculationOptions(num_draft_tokens=1), ("model",), 1, True, id="shortest"
        ),
        pytest.param(
            POLICY, SpeculationOptions(min_draft_tokens=5), ("model",), 5, True, id="at least"
        ),
        pytest.param(
            POLICY, SpeculationOptions(max_draft_tokens=2), ("model",), 2, True, id="at most"
        ),
        pytest.param(
            POLICY,
            SpeculationOptions(sources=("other", "model")),
            ("other", "model"),
            4,
            False,
            id="a client that names its sources gets no lookup beside them",
        ),
        pytest.param(
            POLICY, SpeculationOptions(sources=("ngram",)), ("ngram",), 4, True, id="lookup asked"
        ),
        pytest.param(
            policy_of_flags(num_draft_tokens=4, lookup_on_miss=False),
            SpeculationOptions(),
            (),
            4,
            False,
            id="no lookup",
        ),
        pytest.param(
            policy_of_flags(num_draft_tokens=4, lookup_on_miss=False),
            SpeculationOptions(sources=("ngram",)),
            ("ngram",),
            4,
            True,
            id="no lookup unless asked for",
        ),
    ],
)
def test_a_plan_that_speculates(policy, options, sources, length, lookup):
    made = plan(policy, options)
    assert made.speculates
    assert made.decision == "on"
    assert made.sources == sources
    assert [made.num_draft_tokens(cycle) for cycle in (0, 1, 1000)] == [length] * 3
    assert made.lookup is lookup
    assert made.draft_wait_s == policy.classes[0].draft_wait_ms / 1e3


@pytest.mark.parametrize(
    ("policy", "options", "reason"),
    [
        (POLICY, SpeculationOptions(target_only=True), "target_only_requested"),
        (policy_of_flags(num_draft_tokens=0), SpeculationOptions(), "policy_target_only"),
        (
            policy_of_flags(num_draft_tokens=0),
            SpeculationOptions(min_draft_tokens=2),  # a range does not make it draft
            "policy_target_only",
        ),
    ],
)
def test_a_plan_that_does_not(policy, options, reason):
    made = plan(policy, options)
    assert not made.speculates
    assert made.decision == reason
    assert made.num_draft_tokens(1) == 0
    assert not made.lookup
    assert made.draft_wait_s == 0


def test_a_client_may_speculate_where_the_settings_do_not():
    made = plan(policy_of_flags(num_draft_tokens=0), SpeculationOptions(num_draft_tokens=2))
    assert made.speculates
    assert made.num_draft_tokens == ConstantLength(2)


def test_by_default_the_length_is_chosen_up_to_the_limit():
    policy = policy_of_flags(max_draft_tokens=8)
    assert plan(policy, SpeculationOptions()).num_draft_tokens == AutoLength(8)
    assert plan(policy, SpeculationOptions(sources=("a", "b"))).sources == ("a", "b")
    asked = plan(policy, SpeculationOptions(num_draft_tokens=6))
    assert asked.num_draft_tokens == ConstantLength(6), "a request gets exactly what it names"


def test_a_fixed_length_above_the_limit_raises_it():
    made = plan(policy_of_flags(num_draft_tokens=40), SpeculationOptions())
    assert made.num_draft_tokens == ConstantLength(40)


@pytest.mark.parametrize(
    ("fewest", "most", "length"),
    [
        (None, None, AutoLength(8)),
        (2, None, AutoLength(8, 2)),
        (None, 5, AutoLength(5, 1, 8)),
        (3, 3, AutoLength(3, 3, 8)),
        (1, 8, AutoLength(8, 1)),
    ],
)
def test_a_request_may_bound_what_is_chosen(fewest, most, length):
    options = SpeculationOptions(min_draft_tokens=fewest, max_draft_tokens=most)
    assert plan(policy_of_flags(max_draft_tokens=8), options).num_draft_tokens == length


@pytest.mark.parametrize(
    ("fewest", "most", "length"), [(2, None, 4), (6, None, 6), (None, 3, 3), (5, 7, 5), (1, 8, 4)]
)
def test_a_range_bounds_a_length_that_is_fixed(fewest, most, length):
    options = SpeculationOptions(min_draft_tokens=fewest, max_draft_tokens=most)
    assert plan(POLICY, options).num_draft_tokens == ConstantLength(length)


@pytest.mark.parametrize("wanted", [0, 9, 65, 2**32 - 1])
@pytest.mark.parametrize("name", ["num_draft_tokens", "min_draft_tokens", "max_draft_tokens"])
def test_a_length_out_of_range_is_refused_with_the_range(name, wanted):
    with pytest.raises(InvalidField, match=rf"{wanted} is outside \[1, (8|64)\]") as refused:
        decision(POLICY, SpeculationOptions(**{name: wanted}))
    assert refused.value.field == f"speculation.{name}"


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"target_only": True, "sources": ("model",)}, "target_only"),
        ({"target_only": True, "num_draft_tokens": 2}, "target_only"),
        ({"target_only": True, "max_draft_tokens": 2}, "target_only"),
        ({"num_draft_tokens": 2, "max_draft_tokens": 2}, "max_draft_tokens"),
        ({"num_draft_tokens": 2, "min_draft_tokens": 2}, "min_draft_tokens"),
        ({"min_draft_tokens": 3, "max_draft_tokens": 2}, "min_draft_tokens"),
        ({"num_traced_ids": 65}, "trace_top_ids"),
    ],
)
def test_options_that_contradict_each_other(options, field):
    with pytest.raises(InvalidField) as refused:
        SpeculationOptions(**options)
    assert refused.value.field == f"speculation.{field}"


def test_options_travel():
    options = SpeculationOptions(
        sources=("a", "b"), min_draft_tokens=2, rule=AcceptanceRule.BLOCK, num_traced_ids=3
    )
    assert SpeculationOptions.from_proto(options.to_proto()) == options
    assert SpeculationOptions.from_proto(SpeculationOptions().to_proto()) == SpeculationOptions()


def test_a_class_with_everything_set_reaches_the_plan():
    policy = parse_policy("""
version: 1
classes:
  - name: all
    speculation: on
    sources: [eagle3, ngram]
    drafters: dns:///drafter:50053
    lookup: false
    draft_tokens: {min: 2, max: 6}
    draft_wait_ms: 20
    max_outcomes: auto
    acceptance_rule: block
    pressure: {rows_in_pass: {shorten: 8, stop: 16}}
    min_agreement: 0.5
    shadow: {share: 0.5, max_slowdown: 0}
    fallbacks: {low_agreement: lookup, errors: target_only}
""")
    made = plan_of(decision(policy, SpeculationOptions(num_traced_ids=2)), num_traced_ids=2)
    assert made == SpeculationPlan(
        sources=("eagle3", "ngram"),
        num_draft_tokens=AutoLength(6, 2),
        draft_wait_s=0.02,
        lookup=False,
        decision="on",
        rule=AcceptanceRule.BLOCK,
        num_traced_ids=2,
        max_outcomes="auto",
        drafters=("dns:///drafter:50053",),
        class_name="all",
        pressure=PressureLimits(rows_in_pass=Threshold(shorten=8, stop=16)),
        min_agreement=MinAgreement(rate=0.5),
        shadow=Shadow(share=0.5, max_slowdown=0),
        fallbacks=Fallbacks.model_validate({"low_agreement": "lookup", "errors": "target_only"}),
    )
    exact = plan(policy, SpeculationOptions(num_draft_tokens=3))
    assert exact.pressure is None, "what a request names it gets, whatever presses"
