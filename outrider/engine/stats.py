"""Counts of the engine, taken at one moment."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class EngineStats:
    """Totals since the start, and gauges (blocks, running, waiting) of now."""

    num_passes: int
    num_rows: int
    num_blocks_used: int
    num_blocks_free: int
    num_blocks_evictable: int
    num_prefix_hit_tokens: int
    num_prefix_looked_up_tokens: int
    num_preemptions: int
    num_running: int
    num_waiting: int
    last_pass_ms: float
    last_pass_rows: int
    compute_s: float = 0.0
    passes_by_rows: Mapping[int, int] = field(default_factory=dict)
