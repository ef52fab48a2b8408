"""``python -m bench.gpu_check`` as a person runs it, on a tiny shape."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.gpu_check import Findings
from bench.parity import Comparison, Difference, first_difference
from bench.probe import Probe, full_passes
from outrider.sampling import Mode
from outrider.v1 import common_pb2

ROOT = Path(__file__).parents[2]


@pytest.mark.integration
@pytest.mark.timeout(240)  # under 40 s on an idle machine; it starts five processes
@pytest.mark.parametrize("kernels", ["auto", pytest.param("torch", marks=pytest.mark.slow)])
def test_tiny_shape(tmp_path: Path, kernels: str) -> None:
    command = [sys.executable, "-m", "bench.gpu_check", "--device", "cpu", "--shape", "tiny"]
    done = subprocess.run(
        [*command, "--folder", str(tmp_path)],
        cwd=ROOT,
        env={**os.environ, "OUTRIDER_KERNELS": kernels, "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "promised: equal ids" in done.stdout
    report = json.loads((tmp_path / "gpu_check.json").read_text())
    summary, details = report["summary"], report["details"]
    assert summary["parity_ok"] == 1
    assert details["failures"] == []
    assert details["numerics"]["device"] == "cpu"
    assert summary["num_outputs"] == 2 * 2 * 2 * (1 + 8)  # drafters, modes, lengths, streams
    assert summary["acceptance_unrelated"] < 0.1
    if summary["row_invariant"]:
        assert summary["num_outputs_equal"] == summary["num_outputs"]
        assert summary["acceptance_same"] == 1
        assert summary["margin_change_max"] == 0
    else:
        rounded = summary["num_outputs_rounding"]
        assert summary["num_outputs_equal"] + rounded == summary["num_outputs"]
        assert summary["acceptance_same"] > 0.5
    for name in ("pass_ms_1", "pass_ms_8", "pass_ms_8_sequences", "cycle_overhead_ms_p50"):
        assert summary[name] > 0
    same = [c for c in details["comparisons"] if c["drafter"] == "same"]
    assert all(c["num_cycles_saved"] > 0 for c in same)


def test_full_passes_falls_back_to_the_fullest() -> None:
    assert full_passes([(1, 9.0), (7, 3.0), (8, 4.0)], 8) == [(7, 3.0), (8, 4.0)]
    assert full_passes([(1, 9.0), (3, 3.0)], 8) == [(3, 3.0)]


def test_first_difference_is_where_ids_or_lengths_part() -> None:
    assert first_difference([1, 2, 3], [1, 9, 3]) == 1
    assert first_difference([1, 2], [1, 2, 3]) == 2


@pytest.mark.parametrize(
    ("row_invariant", "changes", "difference", "num_verified", "failing"),
    [
        (True, [0.0], None, 8, False),
        (True, [0.1], None, 8, True),  # invariant in name only
        (True, [0.0], Difference(3, 0.01, is_promised=False), 8, True),
        (False, [0.1], Difference(3, 0.01, is_promised=True), 8, False),
        (False, [0.1], Difference(3, 0.9, is_promised=False), 8, True),
        (False, [3.0], None, 8, True),  # rounding decides everything
        (False, [0.1], None, 0, True),  # nothing was compared
    ],
)
def test_what_breaks_a_promise(
    row_invariant: bool,
    changes: list[float],
    difference: Difference | None,
    num_verified: int,
    failing: bool,
) -> None:
    comparison = Comparison(
        drafter="unrelated",
        mode=Mode.GREEDY,
        num_streams=1,
        num_draft_tokens=4,
        differences=() if difference is None else (difference,),
        num_verified=num_verified,
        num_accepted=0,
        num_cycles=8,
        num_cycles_saved=0,
        overhead_ms=(1.0,),
        network_ms=(1.0,),
    )
    findings = Findings(
        numerics=common_pb2.Numerics(row_invariant=row_invariant),
        probe=Probe(margins=[0.5], changes=changes),
        comparisons=[comparison],
    )
    assert bool(findings.failures) is failing
