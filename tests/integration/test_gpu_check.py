"""``python -m bench.gpu_check`` as a person runs it, on a tiny shape."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench.probe import full_passes

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
        assert summary["acceptance_same_weights"] == 1
        assert summary["margin_change_max"] == 0
    else:
        rounded = summary["num_outputs_rounding"]
        assert summary["num_outputs_equal"] + rounded == summary["num_outputs"]
        assert summary["acceptance_same_weights"] > 0.5
    for name in ("pass_ms_1", "pass_ms_8", "pass_ms_8_sequences", "cycle_overhead_ms_p50"):
        assert summary[name] > 0
    same = [c for c in details["comparisons"] if c["drafter"] == "same weights"]
    assert all(c["num_cycles_saved"] > 0 for c in same)


def test_full_passes_falls_back_to_the_fullest() -> None:
    assert full_passes([(1, 9.0), (7, 3.0), (8, 4.0)], 8) == [(7, 3.0), (8, 4.0)]
    assert full_passes([(1, 9.0), (3, 3.0)], 8) == [(3, 3.0)]
