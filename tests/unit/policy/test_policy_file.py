"""A policy file says what it means, or is refused with the line, the place and the limit."""

import re
from pathlib import Path
from typing import get_args

import pytest

from outrider.errors import PolicyError
from outrider.policy import (
    Policy,
    Speculation,
    parse_policy,
    policy_of_flags,
    read_excerpt,
    read_policy,
    schema,
)

GOOD = """
version: 2026-12-01
metadata: [x-workload-class]
classes:
  - name: interactive
    when:
      metadata: {x-workload-class: [chat, interactive]}
      priority: {min: 1}
    speculation: on
    draft_tokens: {max: 8}
  - name: rest
    speculation: off
"""


def test_a_good_file():
    policy = parse_policy(GOOD)
    assert policy.version == "2026-12-01"
    first, last = policy.classes
    assert first.when.metadata == {"x-workload-class": ("chat", "interactive")}
    assert first.speculation is Speculation.ON
    assert (first.draft_tokens.length, first.draft_tokens.max) == ("auto", 8)
    assert last.speculation is Speculation.OFF
    assert last.when.takes_all


@pytest.mark.parametrize(
    ("written", "length", "least", "most"),
    [
        ("auto", "auto", 1, 32),
        ("4", 4, 1, 4),
        ("0", 0, 1, 32),
        ("{length: 4}", 4, 1, 32),
        ("{min: 2, max: 6}", "auto", 2, 6),
        ("{length: 64, max: 64}", 64, 1, 64),
    ],
)
def test_draft_tokens_may_be_written_short(written, length, least, most):
    policy = parse_policy(one_class(f"draft_tokens: {written}"))
    tokens = policy.classes[0].draft_tokens
    assert (tokens.length, tokens.min, tokens.max) == (length, least, most)


def one_class(line: str) -> str:
    return f"version: 1\nclasses:\n  - name: one\n    speculation: on\n    {line}\n"


@pytest.mark.parametrize(
    ("line", "fault"),
    [
        (
            "draft_tokens: {max: 65}",
            "classes[0].draft_tokens.max: Input should be less than or equal to 64, got 65",
        ),
        ("draft_tokens: 65", "[0].draft_tokens.length: must be auto or a number from 0 to 64"),
        ("draft_tokens: true", "classes[0].draft_tokens"),
        (
            "draft_tokens: {length: 9, max: 8}",
            "classes[0].draft_tokens: length 9 is outside [1, 8]",
        ),
        ("draft_tokens: {min: 9, max: 8}", "classes[0].draft_tokens: min 9 is above max 8"),
        ("draft_token: 4", "[0].draft_token: there is no such key; did you mean draft_tokens?"),
        ("max_outcomes: 33", "[0].max_outcomes: must be auto or a number from 1 to 32, got 33"),
        ("draft_wait_ms: -1", "greater than or equal to 0, got -1"),
        ("draft_wait_ms: .inf", "classes[0].draft_wait_ms: "),
        ("acceptance_rule: greedy", "must be one of coupled, rejection, block, got 'greedy'"),
        ("sources: [a, b, a]", "classes[0].sources: a stands there twice"),
        ("lookup: 1", "classes[0].lookup: Input should be a valid boolean, got 1"),
        ("min_agreement: 0", "[0].min_agreement.rate: Input should be greater than 0, got 0"),
        (
            "min_agreement: {rate: 0.5, resume: 0.4}",
            "classes[0].min_agreement: resume 0.4 is below rate 0.5",
        ),
        ("shadow: {share: 1.5}", "[0].shadow.share: Input should be less than or equal to 1"),
        (
            "pressure: {queue_share: {shorten: 0.9, stop: 0.8}}",
            "classes[0].pressure.queue_share: shorten 0.9 is above stop 0.8",
        ),
        ("pressure: {queue_share: {shorten: 0.9}}", "[0].pressure.queue_share.stop: is required"),
        ("fallbacks: {errors: panic}", "must be one of retry, lookup, target_only, got 'panic'"),
        ("request_may_choose: [anything]", "classes[0].request_may_choose[0]: "),
        ("when: {priority: {}}", "classes[0].when.priority: min or max must be given"),
        ("when: {priority: {min: 5, max: 4}}", "min 5 is above max 4"),
        ("when: {priority: {min: 101}}", "classes[0].when.priority.min: "),
        ("when: {prompt_tokens: {min: 1.5}}", "classes[0].when.prompt_tokens.min: "),
        ("when: {temperature: {max: 101}}", "classes[0].when.temperature.max: "),
        ("when: {sampling: random}", "classes[0].when.sampling: "),
        ("when: {features: {logprob: true}}", "classes[0].when.features.logprob: "),
        ("when: {features: {logprobs: 1}}", "classes[0].when.features.logprobs: "),
        (
            "when: {metadata: {x-class: a}}",
            "classes[0].when.metadata.x-class: the key is not declared under metadata",
        ),
        ("when: {metadata: {x-class: []}}", "x-class: at least one value must be given"),
    ],
)  # fmt: skip
def test_a_fault_is_told_with_its_line_place_and_limit(line, fault):
    with pytest.raises(PolicyError) as refused:
        parse_policy(one_class(line), name="p.yaml")
    (told,) = refused.value.faults
    assert fault in told
    assert str(refused.value) == f"p.yaml: {told}"
    if "not declared" not in fault:  # found across classes
        assert told.startswith("line 5: "), told


def test_lookup_is_not_forbidden_and_named():
    with pytest.raises(PolicyError, match=r"\[0\]: lookup is false, but sources name lookup"):
        parse_policy(one_class("sources: [suffix, lookup]\n    lookup: false"))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("", "must be a mapping with version and classes"),
        ("- a\n", "must be a mapping with version and classes"),
        ("version: 1\n", "classes: is required"),
        ("classes: []\n", "version: is required"),
        ("version: 1.10\nclasses: []\n", "line 1: version: with a dot it must stand in quotes"),
        ("version: 1\nclasses: []\n", "line 2: classes: "),
        ("version: 1\nclasses: [{name: a}]\n", "classes[0].speculation: is required"),
        ("version: [\n", "line 2: "),
        ("version: 1\nversion: 2\nclasses: []\n", 'line 2: found duplicate key "version"'),
        ("version: !!python/object:os.system {}\n", "could not determine a constructor"),
        ("version: 1\nclasses: [{name: unclassified, speculation: off}]\n", "what no class takes"),
        ("version: 1\nclasses: [{name: 'a b', speculation: off}]\n", "must be a name of letters"),
        ("version: 1\nmetadata: [X-Class]\nclasses: []\n", "must be a metadata key in lower case"),
        ("version: 1\nmetadata: [grpc-timeout]\nclasses: []\n", "hold no text of clients"),
        ("version: 1\nclasses: [{name: a, speculation: true}]\n", "on, off, shadow, got True"),
        (
            "version: 1\nclasses: [{name: a, speculation: off}, {name: b, speculation: off}]\n",
            "classes[1]: is never reached, since a takes every request",
        ),
        (
            "version: 1\nclasses:\n- {name: a, speculation: off, when: {sampling: greedy}}\n"
            "- {name: a, speculation: off}\n",
            "classes[1].name: a is also classes[0]",
        ),
    ],
)
def test_what_is_no_policy(text, fault):
    with pytest.raises(PolicyError) as refused:
        parse_policy(text)
    assert fault in str(refused.value)


def test_all_faults_are_told_at_once():
    with pytest.raises(PolicyError) as refused:
        parse_policy("versoin: 1\nclasses:\n  - name: a\n    speculation: maybe\n    lookup: 3\n")
    assert len(refused.value.faults) == 4  # the unknown key, what it was to be, and the two values
    assert [fault.partition(":")[0] for fault in refused.value.faults].count("line 4") == 1


def test_files_that_cannot_be_read(tmp_path: Path):
    with pytest.raises(PolicyError, match="No such file"):
        read_policy(tmp_path / "none.yaml")
    (tmp_path / "huge.yaml").write_text("#" * (1 << 20) + "\n")
    with pytest.raises(PolicyError, match="at most 1048576"):
        read_policy(tmp_path / "huge.yaml")
    (tmp_path / "latin.yaml").write_bytes(b"version: \xe9\n")
    with pytest.raises(PolicyError, match="byte 9 is not UTF-8"):
        read_policy(tmp_path / "latin.yaml")


def test_the_digest_follows_the_meaning_not_the_text():
    same = parse_policy("# another comment\n" + GOOD.replace("{min: 1}", "{'min': 1}"))
    assert same.digest == parse_policy(GOOD).digest
    other = parse_policy(GOOD.replace("{max: 8}", "{max: 9}"))
    assert other.digest != same.digest
    assert len(same.digest) == 16


def test_an_excerpt_is_a_policy_of_its_own():
    policy = parse_policy(GOOD)
    first, last, none = map(read_excerpt, policy.excerpts)
    assert first.classes == policy.classes[:1]
    assert last.classes[1] == policy.classes[1]
    assert last.classes[0].when == policy.classes[0].when
    assert [each.name for each in none.classes] == ["interactive", "rest"]
    for bad in ("", "{", "[]", '{"version": "1"}'):
        with pytest.raises(PolicyError):
            read_excerpt(bad)


def test_the_policy_of_flags_is_one_too():
    policy = policy_of_flags(sources=("model",), num_draft_tokens=4)
    again = read_excerpt(policy.excerpts[0])
    assert again == Policy(version="flags", classes=policy.classes)


DOCS = Path(__file__).parents[3] / "docs"


def test_the_example_is_a_policy():
    policy = read_policy(DOCS / "policy.yaml")
    assert [each.name for each in policy.classes] == ["interactive", "trial", "batch", "rest"]


def test_the_page_names_every_key():
    page = (DOCS / "policy.md").read_text()
    parts = [each for each in vars(schema).values() if isinstance(each, type)]
    keys = {name for each in parts if issubclass(each, schema.Part) for name in each.model_fields}
    assert not {key for key in keys if not re.search(rf"\b{key}\b", page)}
    assert not {name for name in get_args(schema.Feature) if f"`{name}`" not in page}


@pytest.mark.parametrize(
    "text",
    [
        "version: 2026-02-30\nclasses: []\n",
        "version: !!int abc\nclasses: []\n",
        "version: 1\nclasses: []\nlookup: !!bool maybe\n",
        f"version: {'9' * 5000}\nclasses: []\n",
        "version: " + "[" * 2000,
        'version: "\\ud800"\nclasses: []\n',
    ],
    ids=["no such day", "no number", "no truth", "a long number", "deep", "half a surrogate"],
)
def test_what_yaml_itself_cannot_make_is_a_fault_of_the_file(text):
    with pytest.raises(PolicyError, match=r"^policy: "):
        parse_policy(text)
