"""A worker's measures are its engine's counts, under Prometheus' names."""

import pytest
import torch
from prometheus_client import CollectorRegistry

from outrider import worker_metrics
from outrider.engine import EngineStats
from outrider.worker_metrics import WorkerMetrics

STATS = EngineStats(
    num_passes=7,
    num_rows=620,
    num_blocks_used=3,
    num_blocks_free=6,
    num_blocks_evictable=3,
    num_prefix_hit_tokens=32,
    num_prefix_looked_up_tokens=80,
    num_preemptions=2,
    num_running=1,
    num_waiting=4,
    last_pass_ms=1.0,
    last_pass_rows=5,
    compute_s=1.5,
    passes_by_rows={5: 4, 16: 1, 100: 1, 484: 1},
)


class StandingEngine:
    """Always says the same."""

    def stats(self) -> EngineStats:
        return STATS


def registry(metrics: WorkerMetrics) -> CollectorRegistry:
    made = CollectorRegistry()
    made.register(metrics)
    return made


def test_what_the_engine_says():
    made = registry(WorkerMetrics(lambda: 9, StandingEngine()))
    read = made.get_sample_value
    assert read("outrider_num_leases") == 9
    assert read("outrider_engine_passes_total") == 7
    assert read("outrider_engine_compute_seconds_total") == 1.5
    assert read("outrider_kv_cache_usage_perc") == 0.25
    assert read("outrider_prefix_cache_queries_total") == 80
    assert read("outrider_prefix_cache_hits_total") == 32
    assert read("outrider_num_jobs_waiting") == 4
    assert read("outrider_preemptions_total") == 2
    assert read("outrider_gpu_utilization_perc") is None


@pytest.mark.parametrize(
    ("bound", "passes"),
    [("4.0", 0), ("8.0", 4), ("16.0", 5), ("64.0", 5), ("128.0", 6), ("512.0", 7), ("+Inf", 7)],
)
def test_rows_per_pass_are_cumulative(bound, passes):
    made = registry(WorkerMetrics(lambda: 0, StandingEngine()))
    name = "outrider_engine_rows_per_pass"
    assert made.get_sample_value(f"{name}_bucket", {"le": bound}) == passes
    assert made.get_sample_value(f"{name}_count") == 7
    assert made.get_sample_value(f"{name}_sum") == 620


def test_without_a_model_there_are_leases_only():
    made = registry(WorkerMetrics(lambda: 2))
    assert [family.name for family in made.collect()] == ["outrider_num_leases"]


def test_a_busy_gpu_is_told_and_an_unknown_one_left_out(monkeypatch: pytest.MonkeyPatch):
    def absent(device: torch.device) -> int:
        raise ModuleNotFoundError("pynvml does not seem to be installed")

    made = registry(WorkerMetrics(lambda: 0, StandingEngine(), torch.device("cuda:1")))
    monkeypatch.setattr(torch.cuda, "utilization", lambda device: 75)
    assert made.get_sample_value("outrider_gpu_utilization_perc") == 0.75
    monkeypatch.setattr(torch.cuda, "utilization", absent)
    assert made.get_sample_value("outrider_gpu_utilization_perc") is None
    assert worker_metrics.gpu_utilization(torch.device("cpu")) is None
