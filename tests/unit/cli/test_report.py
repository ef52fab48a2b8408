"""The report command: what it refuses, what it writes, and how it ends."""

import json
import lzma
from pathlib import Path

import pytest

from outrider.cli.report import FAILED, OK, run_report
from outrider.errors import InvalidField
from outrider.packet.inputs import Inputs

RECEIPTS = Path(__file__).parents[1] / "packet" / "receipts.jsonl.xz"
CHECK = {"kind": "load", "name": "n", "verdict": "pass", "tolerance": "t", "finding": "f"}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "receipts.jsonl"
    path.write_bytes(lzma.decompress(RECEIPTS.read_bytes()))
    return path


def inputs(log: Path, **changed: object) -> Inputs:
    return Inputs((log,), fixture=False, **changed)  # type: ignore[arg-type]


def test_the_three_verdicts_are_told(log: Path, tmp_path: Path, capsys) -> None:
    load = tmp_path / "load.json"
    load.write_text(json.dumps({"facts": {"load": "a little"}, "checks": [CHECK]}))
    assert run_report(inputs(log, load=load, baseline=(log,)), tmp_path / "out") == OK
    told = capsys.readouterr().out
    assert "correctness: not run: 1 of 4 checks passed, none failed; not run: prob" in told
    assert "eligibility: pass: batch gains" in told or "eligibility: not run: batch" in told
    assert "operational value: pass" in told
    page = (tmp_path / "out" / "index.html").read_text()
    assert "a little" in page
    assert "all target-only" in page


def test_a_check_that_failed_fails_the_packet(log: Path, tmp_path: Path) -> None:
    load = tmp_path / "load.json"
    load.write_text(json.dumps({"facts": {}, "checks": [CHECK | {"verdict": "fail"}]}))
    assert run_report(inputs(log, load=load), tmp_path / "out") == FAILED


@pytest.mark.parametrize(
    ("text", "flag"), [("", "--receipts: no request"), ("{}\nnonsense\n", "--receipts: .*:2 is")]
)
def test_what_are_no_receipts_is_refused_by_name(tmp_path: Path, text: str, flag: str) -> None:
    path = tmp_path / "receipts.jsonl"
    path.write_text(text)
    with pytest.raises(InvalidField, match=flag):
        run_report(inputs(path), tmp_path / "out")


@pytest.mark.parametrize("text", ["{}", '{"facts": {}, "checks": [{"name": "n"}]}', "[]"])
def test_what_no_load_generator_wrote_is_refused_by_name(
    log: Path, tmp_path: Path, text: str
) -> None:
    path = tmp_path / "load.json"
    path.write_text(text)
    with pytest.raises(InvalidField, match="--load"):
        run_report(inputs(log, load=path), tmp_path / "out")
