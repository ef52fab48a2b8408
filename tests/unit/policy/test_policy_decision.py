"""The first class that fits decides; a request's own options narrow it, or are narrowed."""

from dataclasses import replace

import pytest

from outrider.errors import InvalidField
from outrider.policy import (
    Decision,
    Policy,
    Speculation,
    SpeculationOptions,
    Traits,
    decide,
    declared_metadata,
    explain,
    features_of,
    parse_policy,
)
from outrider.policy.decision import is_shadowed
from outrider.sampling import AcceptanceRule, Constraint, ConstraintKind, SamplingParams

TRAITS = Traits(
    model="toy",
    is_greedy=False,
    temperature=0.7,
    num_prompt_tokens=100,
    max_tokens=50,
    priority=3,
    features=frozenset({"logprobs"}),
    metadata={"x-class": "chat"},
)


def policy(when: str, *lines: str, head: str = "metadata: [x-class]") -> Policy:
    """One class with a condition, and one with the lines behind it."""
    rest = "\n".join(f"    {line}" for line in lines)
    return parse_policy(
        f"version: 7\n{head}\nclasses:\n"
        f"  - name: wanted\n    when: {when}\n    speculation: on\n{rest}\n"
        "  - name: rest\n    speculation: off\n"
    )


def decision(
    made: Policy, options: SpeculationOptions | None = None, traits: Traits = TRAITS, **changed: str
) -> Decision:
    return decide(made, traits, options or SpeculationOptions(), changed.get("request_id", "r"))


@pytest.mark.parametrize(
    ("when", "fits"),
    [
        ("{metadata: {x-class: chat}}", True),
        ("{metadata: {x-class: [batch, chat]}}", True),
        ("{metadata: {x-class: batch}}", False),
        ("{models: toy}", True),
        ("{models: [other]}", False),
        ("{sampling: sampled}", True),
        ("{sampling: greedy}", False),
        ("{temperature: {max: 0.7}}", True),
        ("{temperature: {min: 0.7}}", True),
        ("{temperature: {min: 0.71}}", False),
        ("{features: {logprobs: true, tools: false}}", True),
        ("{features: {logprobs: false}}", False),
        ("{features: {tools: true}}", False),
        ("{prompt_tokens: {min: 100, max: 100}}", True),
        ("{prompt_tokens: {max: 99}}", False),
        ("{max_tokens: {min: 50}}", True),
        ("{max_tokens: {min: 51}}", False),
        ("{priority: {min: 3, max: 3}}", True),
        ("{priority: {max: 2}}", False),
        ("{sampling: sampled, priority: {max: 2}}", False),
    ],
)
def test_conditions(when, fits):
    for temperature in (0.7, SamplingParams.from_proto(SamplingParams(temperature=0.7).to_proto())):
        value = temperature if isinstance(temperature, float) else temperature.temperature
        made = decision(policy(when), traits=replace(TRAITS, temperature=value))
        assert made.class_name == ("wanted" if fits else "rest")


def test_a_missing_key_fits_no_value():
    made = decision(policy("{metadata: {x-class: chat}}"), traits=replace(TRAITS, metadata={}))
    assert made.class_name == "rest"


def test_the_first_class_that_fits_decides():
    made = parse_policy(
        "version: 1\nclasses:\n"
        "  - {name: a, when: {priority: {min: 5}}, speculation: on}\n"
        "  - {name: b, when: {priority: {min: 3}}, speculation: on}\n"
        "  - {name: c, when: {priority: {min: 1}}, speculation: on}\n"
    )
    assert decision(made).class_name == "b"
    assert decision(made).class_index == 1
    nothing = decision(made, traits=replace(TRAITS, priority=0))
    assert (nothing.class_name, nothing.class_index) == ("unclassified", None)
    assert (nothing.speculation, nothing.reason) == (Speculation.OFF, "unclassified")


@pytest.mark.parametrize(
    ("lines", "options", "sources", "length", "narrowed"),
    [
        ([], {}, (), ("auto", 1, 32), ()),
        (["sources: [a, b]"], {"sources": ("b", "a")}, ("b", "a"), ("auto", 1, 32), ()),
        (["sources: [a, b]"], {"sources": ("c", "b")}, ("b",), ("auto", 1, 32), ("sources",)),
        (
            ["sources: [a]", "request_may_choose: [other_sources]"],
            {"sources": ("c",)},
            ("c",),
            ("auto", 1, 32),
            (),
        ),
        (
            ["sources: [a]", "request_may_choose: []"],
            {"sources": ("a",)},
            ("a",),
            ("auto", 1, 32),
            ("sources",),
        ),
        (["draft_tokens: {min: 2, max: 8}"], {}, (), ("auto", 2, 8), ()),
        (["draft_tokens: {min: 2, max: 8}"], {"num_draft_tokens": 8}, (), (8, 2, 8), ()),
        (
            ["draft_tokens: {min: 2, max: 8}"],
            {"num_draft_tokens": 9},
            (),
            (8, 2, 8),
            ("num_draft_tokens",),
        ),
        (
            ["draft_tokens: {min: 2, max: 8}"],
            {"min_draft_tokens": 1, "max_draft_tokens": 5},
            (),
            ("auto", 2, 5),
            ("min_draft_tokens",),
        ),
        (["draft_tokens: {length: 4, max: 8}"], {"max_draft_tokens": 3}, (), (3, 1, 3), ()),
        (
            ["draft_tokens: 4", "request_may_choose: [sources]"],
            {"num_draft_tokens": 2},
            (),
            (4, 1, 4),
            ("num_draft_tokens",),
        ),
    ],
)
def test_options_within_a_class(lines, options, sources, length, narrowed):
    made = decision(only("speculation: on", *lines), SpeculationOptions(**options))
    assert made.speculation is Speculation.ON
    assert made.sources == sources
    assert (made.length, made.min_draft_tokens, made.max_draft_tokens) == length
    assert made.narrowed == narrowed


def only(*lines: str) -> Policy:
    text = "".join(f"    {line}\n" for line in lines)
    return parse_policy(f"version: 1\nclasses:\n  - name: only\n{text}")


def test_the_rule_of_a_class_and_a_requests_own():
    made = only("speculation: on", "acceptance_rule: block")
    assert decision(made).rule is AcceptanceRule.BLOCK
    asked = SpeculationOptions(rule=AcceptanceRule.COUPLED)
    assert decision(made, asked).rule is AcceptanceRule.COUPLED
    fixed = only("speculation: on", "acceptance_rule: block", "request_may_choose: [sources]")
    assert decision(fixed, asked).rule is AcceptanceRule.BLOCK
    assert decision(fixed, asked).narrowed == ("acceptance_rule",)
    same = SpeculationOptions(rule=AcceptanceRule.BLOCK)
    assert decision(fixed, same).narrowed == ()


def test_no_source_is_left():
    made = decision(only("speculation: on", "sources: a"), SpeculationOptions(sources=("b",)))
    assert (made.speculation, made.reason) == (Speculation.OFF, "no_permitted_source")


@pytest.mark.parametrize("speculation", ["on", "off", "shadow"])
def test_a_request_may_always_do_without(speculation):
    made = decision(
        only(f"speculation: {speculation}", "request_may_choose: []"),
        SpeculationOptions(target_only=True),
    )
    assert (made.speculation, made.reason) == (Speculation.OFF, "target_only_requested")


def test_options_do_not_turn_speculation_on():
    asked = SpeculationOptions(num_draft_tokens=4)
    assert decision(only("speculation: off"), asked).reason == "policy_target_only"
    assert decision(only("speculation: shadow"), asked).speculation is Speculation.SHADOW
    drafts = decision(only("speculation: on", "draft_tokens: 0"), asked)
    assert (drafts.speculation, drafts.length) == (Speculation.ON, 4)
    none = decision(only("speculation: on", "draft_tokens: 0"))
    assert (none.speculation, none.reason) == (Speculation.OFF, "policy_target_only")


def test_what_is_not_permitted_may_be_refused_or_turn_speculation_off():
    asked = SpeculationOptions(num_draft_tokens=9)
    lines = ("speculation: on", "draft_tokens: {max: 8}")
    off = only(*lines, "fallbacks: {unpermitted_options: target_only}")
    assert decision(off, asked).reason == "unpermitted_option"
    refusing = only(*lines, "fallbacks: {unpermitted_options: refuse}")
    with pytest.raises(InvalidField, match=r"9 is outside \[1, 8\] of class only") as refused:
        decision(refusing, asked)
    assert refused.value.field == "speculation.num_draft_tokens"
    assert decision(refusing, SpeculationOptions(num_draft_tokens=8)).length == 8


def test_the_share_that_is_shadowed_is_drawn_by_request_id():
    made = only("speculation: shadow", "shadow: {share: 0.25}")
    reasons = [decision(made, request_id=f"r{i}").reason for i in range(4000)]
    assert set(reasons) == {"shadow", "outside_shadow_share"}
    share = reasons.count("shadow") / len(reasons)
    assert abs(share - 0.25) < 0.03  # more than four standard deviations
    assert reasons[:50] == [decision(made, request_id=f"r{i}").reason for i in range(50)]
    assert not any(is_shadowed(f"r{i}", 0.0) for i in range(1000))
    assert all(is_shadowed(f"r{i}", 1.0) for i in range(1000))


@pytest.mark.parametrize(
    ("sampling", "named"),
    [
        (SamplingParams(), set()),
        (SamplingParams(logprobs=0), {"logprobs"}),
        (SamplingParams(prompt_logprobs=0), {"prompt_logprobs"}),
        (SamplingParams(n=2), {"n"}),
        (SamplingParams(frequency_penalty=0.1), {"penalties"}),
        (SamplingParams(repetition_penalty=1.1), {"penalties"}),
        (SamplingParams(logit_bias=((1, 1.0),)), {"logit_bias"}),
        (SamplingParams(allowed_token_ids=(1,)), {"token_masks"}),
        (SamplingParams(banned_token_ids=(1,)), {"token_masks"}),
        (SamplingParams(bad_words=("a",)), {"bad_words"}),
        (SamplingParams(constraint=Constraint(ConstraintKind.JSON_OBJECT)), {"constraint"}),
    ],
)
def test_features_of_a_request(sampling, named):
    assert features_of(sampling) == named
    assert features_of(sampling, has_tools=True, is_traced=True) == named | {"tools", "trace"}


def test_only_declared_metadata_is_looked_at():
    made = policy("{models: toy}")
    sent = {"x-class": "chat", "authorization": "secret"}
    assert declared_metadata(made, sent) == {"x-class": "chat"}
    with pytest.raises(InvalidField, match="300 characters, at most 256"):
        declared_metadata(made, {"x-class": "a" * 300})


def test_traits_travel():
    assert Traits.from_proto(TRAITS.to_proto()) == replace(TRAITS, temperature=0.699999988079071)


def test_an_explanation_names_every_condition():
    made = policy("{sampling: sampled, priority: {max: 2}}")
    told = explain(made, TRAITS, SpeculationOptions(num_draft_tokens=4), "r")
    assert list(told.lines)[:2] == [
        "class wanted: no: sampling is sampled; priority is 3, must be at most 2",
        "class rest: yes: takes every request",
    ]
    assert "speculation: off (policy_target_only)" in told.lines
    assert told.decision == decision(made, SpeculationOptions(num_draft_tokens=4))


def test_an_explanation_says_what_it_would_have_to_know():
    made = policy("{prompt_tokens: {max: 10}}")
    told = explain(made, replace(TRAITS, num_prompt_tokens=None), SpeculationOptions(), "r")
    assert told.decision is None
    assert list(told.lines) == [
        "class wanted: not known: prompt_tokens is not known, must be at most 10",
        "no decision: prompt_tokens: class wanted asks for it",
    ]
    # A class that another condition rules out need not know.
    other = policy("{sampling: greedy, prompt_tokens: {max: 10}}")
    told = explain(other, replace(TRAITS, num_prompt_tokens=None), SpeculationOptions(), "r")
    assert told.decision is not None


def test_an_explanation_says_where_it_hangs_on_the_id():
    made = only("speculation: shadow", "shadow: {share: 0.5}")
    assert explain(made, TRAITS, SpeculationOptions(), "").hangs_on_id
    assert not explain(made, TRAITS, SpeculationOptions(), "r").hangs_on_id
    whole = only("speculation: shadow")
    assert not explain(whole, TRAITS, SpeculationOptions(), "").hangs_on_id
