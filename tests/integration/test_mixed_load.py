"""A short mixed load over workers that sleep: three policies in turn, receipts and packet."""

import argparse
import json
from pathlib import Path

import pytest

from bench.mixed_load import AGAIN, BASELINE, POLICY, TRIAL, measure
from outrider.cli.report import run_report
from outrider.packet.inputs import Inputs
from outrider.receipts import read_receipts

pytestmark = [pytest.mark.integration, pytest.mark.slow]


@pytest.mark.timeout(240)
async def test_each_run_has_its_policy_and_its_receipts(tmp_path: Path) -> None:
    options = argparse.Namespace(
        real=False, per_s=8.0, span_s=3.0, verifiers=1, seed=5, out=tmp_path
    )
    await measure(options)  # what gains depends on the machine in so short a time
    told = json.loads((tmp_path / "load.json").read_text())
    verdicts = {each["name"]: each["verdict"] for each in told["checks"]}
    assert verdicts["every request is completed"] == "pass"
    assert verdicts["no other class has drafts"] == "pass"
    runs = {
        name: list(read_receipts(tmp_path / f"{name}.jsonl"))
        for name in (BASELINE, TRIAL, POLICY, AGAIN)
    }
    num_requests = int(told["facts"]["load"].split()[0])
    for name, receipts in runs.items():
        assert len(receipts) == num_requests > 10
        assert {each.policy.version for each in receipts} == {name}
        assert all(each.request_id.startswith(f"{name}-") for each in receipts)
    asked = {name: [each.requested.target_only for each in run] for name, run in runs.items()}
    assert all(asked[BASELINE] + asked[AGAIN])
    assert 0 < sum(asked[TRIAL]) == sum(asked[POLICY]) < num_requests
    assert not sum(each.num_spec_steps for each in runs[BASELINE] + runs[AGAIN])
    inputs = Inputs(
        (tmp_path / f"{POLICY}.jsonl",),
        baseline=tuple(tmp_path / f"{name}.jsonl" for name in (BASELINE, AGAIN)),
        load=tmp_path / "load.json",
        fixture=False,
    )
    run_report(inputs, tmp_path / "packet")
    page = (tmp_path / "packet" / "index.html").read_text()
    assert all(each["name"] in page for each in told["checks"])
