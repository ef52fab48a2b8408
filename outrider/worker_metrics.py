"""A worker's measures, read from its engine when Prometheus asks."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

import torch
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from outrider.engine import EngineStats

PREFIX = "outrider_"
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)


class HasStats(Protocol):
    """An engine, as far as its measures go."""

    def stats(self) -> EngineStats: ...


@dataclass(frozen=True, slots=True, eq=False)
class WorkerMetrics(Collector):
    """Leases, and what an engine has done; a worker without a model has no engine."""

    num_leases: Callable[[], int]
    engine: HasStats | None = None
    device: torch.device | None = None

    def collect(self) -> Iterator[Metric]:
        """Yield everything as it is now."""
        yield _gauge("num_leases", "Open leases.", self.num_leases())
        if self.engine is not None:
            yield from _of_engine(self.engine.stats())
        utilization = None if self.device is None else gpu_utilization(self.device)
        if utilization is not None:
            about = "Share of time in which the GPU was at work, 1 is always."
            yield _gauge("gpu_utilization_perc", about, utilization)


def gpu_utilization(device: torch.device) -> float | None:
    """Return how busy the driver says the GPU is, in [0, 1]; None where nobody can tell."""
    if device.type != "cuda":
        return None
    try:
        return torch.cuda.utilization(device) / 100
    except Exception:  # NVML's Python package is absent, or the driver does not let us ask
        return None


def _of_engine(stats: EngineStats) -> Iterator[Metric]:
    num_blocks = stats.num_blocks_used + stats.num_blocks_free + stats.num_blocks_evictable
    yield _counter("engine_passes", "Forward passes.", stats.num_passes)
    yield _counter("engine_compute_seconds", "Time in forward passes.", stats.compute_s)
    yield _rows_per_pass(stats.passes_by_rows)
    yield _gauge(
        "kv_cache_usage_perc",
        "Share of KV blocks that a lease holds, 1 is all.",
        stats.num_blocks_used / max(num_blocks, 1),
    )
    yield _counter(
        "prefix_cache_queries",
        "Tokens that were looked up in the prefix cache.",
        stats.num_prefix_looked_up_tokens,
    )
    yield _counter(
        "prefix_cache_hits", "Tokens that the prefix cache held.", stats.num_prefix_hit_tokens
    )
    yield _gauge("num_jobs_waiting", "Jobs that wait for their first pass.", stats.num_waiting)
    yield _counter("preemptions", "Times that an idle lease's KV gave way.", stats.num_preemptions)


def _rows_per_pass(passes_by_rows: Mapping[int, int]) -> HistogramMetricFamily:
    within = [(bound, _passes(passes_by_rows, bound)) for bound in ROWS]
    buckets = [(str(float(bound)), float(passes)) for bound, passes in within]
    buckets.append(("+Inf", float(sum(passes_by_rows.values()))))
    num_rows = sum(rows * passes for rows, passes in passes_by_rows.items())
    about = "Rows (token positions) of a forward pass."
    return HistogramMetricFamily(
        f"{PREFIX}engine_rows_per_pass", about, buckets=buckets, sum_value=num_rows
    )


def _passes(passes_by_rows: Mapping[int, int], bound: int) -> int:
    return sum(passes for rows, passes in passes_by_rows.items() if rows <= bound)


def _counter(name: str, about: str, value: float) -> CounterMetricFamily:
    return CounterMetricFamily(PREFIX + name, about, value=value)


def _gauge(name: str, about: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(PREFIX + name, about, value=value)
