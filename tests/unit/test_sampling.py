"""Sampling parameters: each limit from both sides, and what is not built is refused by name."""

import dataclasses
import math

import pytest

from outrider.errors import InvalidField
from outrider.sampling import (
    GREEDY_BELOW,
    MAX_STOP_CHARACTERS,
    MAX_STOP_STRINGS,
    MAX_STOP_TOKEN_IDS,
    NOT_BUILT,
    UNFIT_FOR_CONSTRAINTS,
    Constraint,
    ConstraintKind,
    Mode,
    SamplingParams,
    choice_seed,
)
from outrider.v1 import common_pb2 as pb

GOOD = [
    ("temperature", [0.0, 1e-9, 1.0, 100.0]),
    ("top_p", [1e-6, 0.5, 1.0]),
    ("top_k", [-1, 0, 1, 2**31 - 1]),
    ("min_p", [0.0, 1.0]),
    ("max_tokens", [1, 2**31 - 1]),
    ("min_tokens", [0, 5]),
    ("seed", [-(2**63), 0, 2**63 - 1]),
    ("frequency_penalty", [-2.0, 2.0]),
    ("presence_penalty", [-2.0, 2.0]),
    ("repetition_penalty", [1e-6, 2.0]),
    ("n", [1, 16]),
    ("logprobs", [0, 64]),
    ("prompt_logprobs", [0, 64]),
    ("truncate_prompt_tokens", [1, 2**31 - 1]),
    ("logit_bias", [((0, -100.0), (1, 100.0)), tuple((i, 1.0) for i in range(4096))]),
    ("bad_words", [("x" * 256,) * 64]),
    ("stop", [(), ("x",), ("x" * MAX_STOP_CHARACTERS,), ("x",) * MAX_STOP_STRINGS]),
    ("stop_token_ids", [(), tuple(range(MAX_STOP_TOKEN_IDS))]),
]
BAD = [
    ("temperature", [-1e-9, 100.1, math.nan, math.inf, -math.inf, 1e300]),
    ("top_p", [0.0, -0.1, 1.0000001, math.nan, math.inf]),
    ("top_k", [-2, 2**31]),
    ("min_p", [-0.1, 1.1, math.nan]),
    ("max_tokens", [0, -1, 2**31]),
    ("min_tokens", [-1, 2**31]),
    ("seed", [-(2**63) - 1, 2**63]),
    ("frequency_penalty", [-2.1, 2.1, math.nan]),
    ("presence_penalty", [-2.1, 2.1, math.nan]),
    ("repetition_penalty", [0.0, 2.1, math.nan]),
    ("n", [0, 17]),
    ("logprobs", [-1, 65]),
    ("prompt_logprobs", [-1, 65]),
    ("truncate_prompt_tokens", [0]),
    ("logit_bias", [tuple((i, 1.0) for i in range(4097))]),
    ("bad_words", [("x",) * 65]),
    ("stop", [("x",) * (MAX_STOP_STRINGS + 1)]),
    ("stop_token_ids", [tuple(range(MAX_STOP_TOKEN_IDS + 1))]),
]


def pairs(table):
    return [(name, value) for name, values in table for value in values]


@pytest.mark.parametrize(("name", "value"), pairs(GOOD))
def test_values_inside_their_range(name, value):
    assert getattr(SamplingParams(**{name: value}), name) == value


@pytest.mark.parametrize(("name", "value"), pairs(BAD))
def test_values_outside_are_refused_by_name(name, value):
    with pytest.raises(InvalidField, match=rf"^sampling_params\.{name}: ") as refused:
        SamplingParams(**{name: value})
    assert refused.value.field == f"sampling_params.{name}"


@pytest.mark.parametrize("text", ["", "x" * (MAX_STOP_CHARACTERS + 1)])
def test_a_stop_string_is_named_by_its_place(text):
    with pytest.raises(InvalidField) as refused:
        SamplingParams(stop=("fine", text))
    assert refused.value.field == "sampling_params.stop[1]"


def test_min_tokens_above_max_tokens():
    with pytest.raises(InvalidField, match=r"min_tokens: 6 is outside \[0, 5\]"):
        SamplingParams(max_tokens=5, min_tokens=6)


@pytest.mark.parametrize(
    ("temperature", "mode"),
    [
        (0.0, Mode.GREEDY),
        (GREEDY_BELOW / 2, Mode.GREEDY),
        (GREEDY_BELOW, Mode.COUPLED),
        (1.0, Mode.COUPLED),
        (100.0, Mode.COUPLED),
    ],
)
def test_the_mode_follows_the_temperature(temperature, mode):
    assert SamplingParams(temperature=temperature).mode() is mode


@pytest.mark.parametrize(("seed", "key"), [(0, 0), (-1, 2**64 - 1), (-(2**63), 2**63), (5, 5)])
def test_every_seed_has_its_own_key(seed, key):
    assert SamplingParams(seed=seed).key == key


def test_an_unset_message_means_the_defaults():
    assert SamplingParams.from_proto(pb.SamplingParams()) == SamplingParams()


FULL = SamplingParams(
    temperature=0.5, top_p=0.25, top_k=40, min_p=0.125, max_tokens=9, min_tokens=3,
    stop=("a", "b"), stop_token_ids=(1, 2), skip_special_tokens=False, ignore_eos=True, seed=-7,
    frequency_penalty=0.5, presence_penalty=-0.5, repetition_penalty=1.25, n=2, logprobs=0,
    prompt_logprobs=1, include_stop_str_in_output=True, truncate_prompt_tokens=10,
    logit_bias=((3, -1.5), (7, 2.0)), allowed_token_ids=(1, 2, 3), banned_token_ids=(3,),
    bad_words=("no", "never"), bad_token_ids=((4,), (5, 6)),
)  # fmt: skip
CONSTRAINTS = [
    Constraint(ConstraintKind.CHOICE, choices=("a", "b"), after="so"),
    Constraint(ConstraintKind.JSON_SCHEMA, "{}"),
    Constraint(ConstraintKind.REGEX, "a*", after="</think>"),
    Constraint(ConstraintKind.GRAMMAR, 'start: "a"'),
    Constraint(ConstraintKind.JSON_OBJECT),
]


def test_a_message_there_and_back():
    assert SamplingParams.from_proto(FULL.to_proto()) == FULL
    assert SamplingParams.from_proto(SamplingParams().to_proto()) == SamplingParams()
    for each in dataclasses.fields(SamplingParams):
        if each.name != "constraint":
            assert getattr(FULL, each.name) != getattr(SamplingParams(), each.name), each.name


@pytest.mark.parametrize("constraint", CONSTRAINTS, ids=lambda each: each.kind.value)
def test_a_constraint_there_and_back(constraint):
    sampling = SamplingParams(constraint=constraint)
    assert SamplingParams.from_proto(sampling.to_proto()) == sampling


@pytest.mark.parametrize("name", UNFIT_FOR_CONSTRAINTS)
def test_what_a_constraint_could_not_keep_is_refused_beside_it(name):
    """Ids that are forbidden may be the only ones left; a stop string may cut the text short."""
    with pytest.raises(InvalidField, match=rf"\.{name}: .* together with a constraint"):
        SamplingParams(constraint=CONSTRAINTS[1], **{name: getattr(FULL, name)})


def test_a_message_with_a_value_out_of_range():
    with pytest.raises(InvalidField, match="temperature"):
        SamplingParams.from_proto(pb.SamplingParams(temperature=math.nan))


OTHER = {"spaces_between_special_tokens": False}


@pytest.mark.parametrize(("name", "value"), OTHER.items())
def test_what_is_not_built_is_refused_by_name(name, value):
    with pytest.raises(InvalidField) as refused:
        SamplingParams.from_proto(pb.SamplingParams(**{name: value}))
    assert refused.value.field == f"sampling_params.{name}"
    assert "not supported" in str(refused.value)


def test_the_list_of_what_is_not_built_is_tested_whole():
    assert OTHER.keys() == NOT_BUILT.keys()


@pytest.mark.parametrize(("name", "value"), [(n, v) for n, v in NOT_BUILT.items() if v is not None])
def test_the_value_that_changes_nothing_is_welcome(name, value):
    assert SamplingParams.from_proto(pb.SamplingParams(**{name: value})) == SamplingParams()


def test_n_of_zero_and_penalties_that_are_no_number_are_refused():
    for message in (pb.SamplingParams(n=0), pb.SamplingParams(frequency_penalty=math.nan)):
        with pytest.raises(InvalidField):
            SamplingParams.from_proto(message)


@pytest.mark.parametrize(
    ("message", "field"),
    [
        (pb.SamplingParams(logit_bias={3: 100.5}), "logit_bias[3]"),
        (pb.SamplingParams(json_schema=""), "json_schema"),
        (pb.SamplingParams(regex=""), "regex"),
        (pb.SamplingParams(choice=pb.Choice()), "choice.choices"),
        (pb.SamplingParams(choice=pb.Choice(choices=["a", "a"])), "choice.choices"),
        (pb.SamplingParams(constraint_after="</think>"), "constraint_after"),
        (pb.SamplingParams(regex="a", constraint_after="x" * 257), "constraint_after"),
        (pb.SamplingParams(bad_words=["fine", ""]), "bad_words[1]"),
        (
            pb.SamplingParams(bad_token_ids=[pb.TokenIds()]),
            "bad_token_ids[0]",
        ),
    ],
)
def test_biases_and_constraints_are_refused_by_name(message, field):
    with pytest.raises(InvalidField) as refused:
        SamplingParams.from_proto(message)
    assert refused.value.field == f"sampling_params.{field}"


def test_every_field_of_the_schema_is_read_or_refused():
    written = {each.name for each, _ in FULL.to_proto().ListFields()}
    written |= {kind.value for kind in ConstraintKind} | {"constraint_after"}
    assert written | set(NOT_BUILT) == set(pb.SamplingParams.DESCRIPTOR.fields_by_name)


@pytest.mark.parametrize("value", [0, 17, 2**31 - 1])
def test_a_mode_that_is_none(value):
    with pytest.raises(InvalidField, match="is not a mode"):
        Mode.from_proto(value)


def test_the_first_choice_has_the_request_s_seed_and_the_others_have_hashes():
    """Case 13: stepping a seed by the index would give neighbours the same choices."""
    seeds = [-(2**63), -2, -1, 0, 1, 7, 8, 2**63 - 1]
    made = {(seed, index): choice_seed(seed, index) for seed in seeds for index in range(16)}
    assert [made[seed, 0] for seed in seeds] == seeds
    assert len(set(made.values())) == len(made)
    assert all(-(2**63) <= seed < 2**63 for seed in made.values())
    # Fixed for ever: receipts of old outputs name these.
    assert choice_seed(7, 1) == 3163711640119389964
