"""What a client asks of speculation, what the operator allows, and what comes of both."""

import pytest

from orchestrator.policy import AutoLength, ConstantLength, Policy, SpeculationOptions
from outrider.errors import InvalidField

POLICY = Policy(sources=("model",), num_draft_tokens=4, max_draft_tokens=8, draft_wait_s=0.2)


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
            Policy(num_draft_tokens=4, lookup_on_miss=False),
            SpeculationOptions(),
            (),
            4,
            False,
            id="no lookup",
        ),
        pytest.param(
            Policy(num_draft_tokens=4, lookup_on_miss=False),
            SpeculationOptions(sources=("ngram",)),
            ("ngram",),
            4,
            True,
            id="no lookup unless asked for",
        ),
    ],
)
def test_a_plan_that_speculates(policy, options, sources, length, lookup):
    plan = policy.plan(options)
    assert plan.speculates
    assert plan.decision == "on"
    assert plan.sources == sources
    assert [plan.num_draft_tokens(cycle) for cycle in (0, 1, 1000)] == [length] * 3
    assert plan.lookup is lookup
    assert plan.draft_wait_s == policy.draft_wait_s


@pytest.mark.parametrize(
    ("policy", "options", "decision"),
    [
        (POLICY, SpeculationOptions(target_only=True), "target_only_requested"),
        (Policy(num_draft_tokens=0), SpeculationOptions(), "policy_target_only"),
    ],
)
def test_a_plan_that_does_not(policy, options, decision):
    plan = policy.plan(options)
    assert not plan.speculates
    assert plan.decision == decision
    assert plan.num_draft_tokens(1) == 0
    assert not plan.lookup
    assert plan.draft_wait_s == 0


def test_a_client_may_speculate_where_the_policy_does_not():
    plan = Policy(num_draft_tokens=0).plan(SpeculationOptions(num_draft_tokens=2))
    assert plan.speculates
    assert plan.num_draft_tokens == ConstantLength(2)


def test_by_default_the_length_is_chosen_up_to_the_policys_limit():
    policy = Policy(max_draft_tokens=8)
    assert policy.plan(SpeculationOptions()).num_draft_tokens == AutoLength(8)
    assert policy.plan(SpeculationOptions(sources=("a", "b"))).sources == ("a", "b")
    asked = policy.plan(SpeculationOptions(num_draft_tokens=6))
    assert asked.num_draft_tokens == ConstantLength(6), "a request gets exactly what it names"


@pytest.mark.parametrize("wanted", [0, 9, 2**32 - 1])
@pytest.mark.parametrize("name", ["num_draft_tokens", "min_draft_tokens", "max_draft_tokens"])
def test_a_length_out_of_range_is_refused_with_the_range(name, wanted):
    with pytest.raises(InvalidField, match=rf"{wanted} is outside \[1, 8\]") as refused:
        POLICY.plan(SpeculationOptions(**{name: wanted}))
    assert refused.value.field == f"speculation.{name}"


@pytest.mark.parametrize(
    ("fewest", "most", "length", "words"),
    [
        (None, None, AutoLength(8), ""),
        (2, None, AutoLength(8, 2), "at least 2 draft tokens, as the request asked"),
        (None, 5, AutoLength(5, 1, 8), "at most 5 draft tokens, as the request asked"),
        (3, 3, AutoLength(3, 3, 8), "at least 3 and at most 3 draft tokens, as the request asked"),
        (1, 8, AutoLength(8, 1, 8), "at least 1 and at most 8 draft tokens, as the request asked"),
    ],
)
def test_a_request_may_bound_what_is_chosen(fewest, most, length, words):
    options = SpeculationOptions(min_draft_tokens=fewest, max_draft_tokens=most)
    plan = Policy(max_draft_tokens=8).plan(options)
    assert plan.num_draft_tokens == length
    assert plan.bounds == words


@pytest.mark.parametrize(
    ("fewest", "most", "length"), [(2, None, 4), (6, None, 6), (None, 3, 3), (5, 7, 5), (1, 8, 4)]
)
def test_a_range_bounds_a_length_that_the_policy_fixes(fewest, most, length):
    options = SpeculationOptions(min_draft_tokens=fewest, max_draft_tokens=most)
    assert POLICY.plan(options).num_draft_tokens == ConstantLength(length)


def test_a_range_does_not_make_a_policy_draft_that_does_not():
    plan = Policy(num_draft_tokens=0).plan(SpeculationOptions(min_draft_tokens=2))
    assert (plan.speculates, plan.decision) == (False, "policy_target_only")


@pytest.mark.parametrize(
    ("options", "field", "fault"),
    [
        (
            SpeculationOptions(min_draft_tokens=5, max_draft_tokens=4),
            "min_draft_tokens",
            "5 is above max_draft_tokens, 4",
        ),
        (
            SpeculationOptions(num_draft_tokens=4, max_draft_tokens=4),
            "max_draft_tokens",
            "excludes num_draft_tokens",
        ),
        (
            SpeculationOptions(num_draft_tokens=4, min_draft_tokens=1),
            "min_draft_tokens",
            "excludes num_draft_tokens",
        ),
    ],
)
def test_lengths_that_contradict_each_other_are_refused(options, field, fault):
    with pytest.raises(InvalidField, match=fault) as refused:
        POLICY.plan(options)
    assert refused.value.field == f"speculation.{field}"


@pytest.mark.parametrize(
    "options",
    [
        SpeculationOptions(target_only=True, sources=("model",)),
        SpeculationOptions(target_only=True, num_draft_tokens=2),
        SpeculationOptions(target_only=True, min_draft_tokens=2),
        SpeculationOptions(target_only=True, max_draft_tokens=2),
    ],
)
def test_target_only_excludes_what_contradicts_it(options):
    with pytest.raises(InvalidField) as refused:
        POLICY.plan(options)
    assert refused.value.field == "speculation.target_only"
