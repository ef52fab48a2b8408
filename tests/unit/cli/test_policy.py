"""``outrider policy`` answers without any service, with exit codes that scripts can use."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from outrider.cli.commands import app
from outrider.errors import InvalidField, PolicyError

POLICY = """
version: 7
metadata: [x-class]
classes:
  - name: short
    when: {metadata: {x-class: chat}, prompt_tokens: {max: 100}, models: toy}
    speculation: on
    draft_tokens: {max: 4}
  - name: rest
    speculation: off
"""


def invoke(*arguments: str):
    return CliRunner().invoke(app, ["policy", *arguments])


@pytest.fixture
def policy(tmp_path: Path) -> str:
    path = tmp_path / "policy.yaml"
    path.write_text(POLICY)
    return str(path)


def request(tmp_path: Path, **fields: object) -> str:
    path = tmp_path / "request.json"
    path.write_text(json.dumps(fields))
    return str(path)


def test_check_names_the_classes(policy: str):
    done = invoke("check", policy)
    assert done.exit_code == 0
    assert "version 7, digest " in done.output
    assert done.output.splitlines()[-2:] == ["  short: on", "  rest: off (takes every request)"]


def test_check_fails_with_every_fault(policy: str):
    Path(policy).write_text(POLICY.replace("max: 4", "max: 400").replace("off", "of"))
    done = invoke("check", policy)
    assert done.exit_code != 0
    assert isinstance(done.exception, PolicyError)
    assert len(done.exception.faults) == 2


def test_explain_shows_rule_by_rule(policy: str, tmp_path: Path):
    asked = request(
        tmp_path,
        model="toy",
        tokenized={"input_ids": [1, 2, 3]},
        sampling_params={"temperature": 0.5, "max_tokens": 8},
        speculation={"num_draft_tokens": 9},
        metadata={"X-Class": "chat"},
    )
    done = invoke("explain", asked, "--policy", policy)
    assert done.exit_code == 0
    first, second, third, *rest = done.output.splitlines()
    assert first.startswith("policy 7 (")
    assert second == (
        "class short: yes: metadata.x-class is chat; models is toy; prompt_tokens is 3"
    )
    assert third == "speculation: on (on)"
    assert "not as the request asked: num_draft_tokens" in rest
    assert "draft tokens: 4" in rest
    told = json.loads(invoke("explain", asked, "--policy", policy, "--json").output)
    assert told["decision"]["workload_class"] == "short"
    assert told["classes"][0]["conditions"][0]["found"] == "chat"


def test_explain_asks_for_what_it_cannot_know(policy: str, tmp_path: Path):
    asked = request(tmp_path, model="toy", text="Hello", metadata={"x-class": "chat"})
    done = invoke("explain", asked, "--policy", policy)
    assert done.exit_code == 1
    assert "no decision: prompt_tokens: class short asks for it" in done.output
    known = invoke("explain", asked, "--policy", policy, "--prompt-tokens", "101")
    assert known.exit_code == 0
    assert "prompt_tokens is 101, must be at most 100" in known.output
    assert "speculation: off (policy_target_only)" in known.output


def test_without_a_file_the_built_in_policy_decides(tmp_path: Path):
    done = invoke("explain", request(tmp_path, text="Hello"))
    assert done.exit_code == 0
    assert "class default: yes: takes every request" in done.output


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("{", "no JSON"),
        ("[]", "must be an object"),
        ('{"txt": "a"}', 'no field named "txt"'),
        ('{"metadata": {"a": 1}}', "metadata: must be an object of strings"),
        ('{"sampling_params": {"temperature": -1}}', "sampling_params.temperature"),
    ],
)
def test_requests_that_cannot_be_read(text: str, fault: str, policy: str, tmp_path: Path):
    path = tmp_path / "bad.json"
    path.write_text(text)
    done = invoke("explain", str(path), "--policy", policy)
    assert isinstance(done.exception, InvalidField)
    assert fault in str(done.exception)
