"""What speaks for correctness is read from files, and nothing passes by being absent."""

import json
from pathlib import Path

import pytest

from outrider.errors import InvalidField
from outrider.packet.correctness import (
    Evidence,
    fixture_runs,
    of_audit,
    of_fixture,
    of_law_tests,
    of_receipts,
    verdict_of,
)
from tests.unit.packet.made import receipt

JUNIT = """<?xml version="1.0"?><testsuites><testsuite name="pytest">
<testcase classname="tests.statistical.test_law_ratio" name="test_joint[block]" time="2.5"/>
<testcase classname="tests.statistical.test_law_ratio" name="test_joint[rejection]" time="1.5">{}
</testcase>
<testcase classname="tests.statistical.test_law" name="test_sampler" time="1"><skipped/></testcase>
</testsuite></testsuites>"""


def evidence(verdict: str) -> Evidence:
    return Evidence("kind", "name", verdict, "", "")


def test_one_failure_fails_and_what_was_not_run_does_not_pass():
    assert verdict_of([evidence("pass"), evidence("not run"), evidence("fail")]) == "fail"
    assert verdict_of([evidence("pass"), evidence("not run")]) == "not run"
    assert verdict_of([evidence("pass")]) == "pass"
    assert verdict_of([]) == "not run"


def test_law_tests_are_told_by_file(tmp_path: Path):
    path = tmp_path / "law.xml"
    path.write_text(JUNIT.format(""))
    ratio, plain = of_law_tests(path)
    assert (ratio.name, ratio.verdict, ratio.finding) == ("law ratio", "pass", "2 of 2 passed, 4 s")
    assert (plain.verdict, plain.finding) == ("not run", "0 of 1 passed, 1 s, 1 skipped")
    path.write_text(JUNIT.format('<failure message="chi2"/>'))
    ratio, _ = of_law_tests(path)
    assert ratio.verdict == "fail"
    assert ratio.finding.endswith("failed: test_joint[rejection]")


@pytest.mark.parametrize("text", ["no xml", "<testsuites/>"])
def test_what_are_no_law_tests_is_refused_by_name(tmp_path: Path, text: str):
    path = tmp_path / "law.xml"
    path.write_text(text)
    with pytest.raises(InvalidField, match="--law"):
        of_law_tests(path)


def test_an_audits_views_are_taken_over(tmp_path: Path):
    path = tmp_path / "audit.json"
    view = {"title": "t", "verdict": "fail", "tolerance": "o", "finding": "f", "figures": {}}
    path.write_text(json.dumps({"verdict": "fail", "views": {"equality": view}}))
    assert of_audit(path) == [Evidence("audit", "t", "fail", "o", "f")]


@pytest.mark.parametrize("text", ["[]", "{", '{"views": {}}', '{"views": {"a": {"title": "t"}}}'])
def test_what_is_no_audit_is_refused_by_name(tmp_path: Path, text: str):
    path = tmp_path / "audit.json"
    path.write_text(text)
    with pytest.raises(InvalidField, match="--audit"):
        of_audit(path)


def test_receipts_must_agree_with_themselves():
    right = receipt(
        num_draft_tokens=0, draft_acceptance_rate=0.0, mean_acceptance_length=1.0, verify_ms=120.0
    )
    assert of_receipts([right]).verdict == "pass"
    wrong = receipt(mean_acceptance_length=1.0, num_passes_saved=3, request_id="odd")
    found = of_receipts([right, wrong])
    assert found.verdict == "fail"
    assert "1 of 2 receipts agree; odd: num_passes_saved" in found.finding


def test_the_fixture_passes_and_names_what_it_ran():
    found = [of_fixture(rule, runs) for rule, runs in fixture_runs(500).items()]
    assert [each.verdict for each in found] == ["pass", "pass"]
    assert "500 runs" in found[0].finding
