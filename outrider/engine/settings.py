"""Limits of the engine."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """How much the engine may hold and how it packs its passes.

    Raises: ValueError if a limit is out of range.
    """

    block_size: int = 16
    """Positions per KV block; a multiple of 16."""
    num_blocks: int | None = None
    """Blocks of the pool; None derives it from ``kv_cache_bytes``."""
    kv_cache_bytes: int = 1 << 30
    max_tokens_per_pass: int = 512
    prefill_chunk_tokens: int = 128
    """Most prompt tokens in a pass that also carries running streams."""
    max_decode_tokens: int = 64
    """A job with at most this many tokens left counts as a running stream, not as prefill."""
    gather_ms: float = 20.0
    """Longest wait for streams of the last pass to come back."""
    gather_fraction: float = 0.3
    """The same limit as a part of the last pass."""
    kernels: str = "auto"
    """"auto" (native on a CPU with a C compiler) or "torch"."""

    threads: int | None = None
    """Threads of the native kernels; None takes OMP_NUM_THREADS or all usable CPUs."""

    def __post_init__(self) -> None:
        if self.block_size < 16 or self.block_size % 16:
            raise ValueError(f"block_size must be a multiple of 16, not {self.block_size}")
        if self.num_blocks is not None and self.num_blocks < 1:
            raise ValueError(f"num_blocks must be at least 1, not {self.num_blocks}")
        if self.max_tokens_per_pass < 1 or self.prefill_chunk_tokens < 1:
            raise ValueError("max_tokens_per_pass and prefill_chunk_tokens must be at least 1")
        if self.max_decode_tokens < 1 or self.kv_cache_bytes < 1:
            raise ValueError("max_decode_tokens and kv_cache_bytes must be at least 1")
        if self.gather_ms < 0 or not 0 <= self.gather_fraction <= 1:
            raise ValueError("gather_ms must be >= 0 and gather_fraction in [0, 1]")
        if self.threads is not None and self.threads < 1:
            raise ValueError(f"threads must be at least 1, not {self.threads}")
        if self.kernels not in ("auto", "torch"):
            raise ValueError(f'kernels must be "auto" or "torch", not {self.kernels!r}')
