"""Hidden states on their way from a verifier to a drafter; nothing here looks into them."""

from collections import deque
from dataclasses import dataclass, field
from typing import Any

MAX_KEPT_FEATURE_BYTES = 32 << 20  # of one sequence


@dataclass(frozen=True, slots=True)
class StepFeatures:
    """What a step gave: chunks as they came, and the layers that it was asked for.

    A drafter that was taken in the meantime may want others.
    """

    layers: tuple[int, ...] = ()
    chunks: tuple[Any, ...] = ()

    @property
    def num_bytes(self) -> int:
        """Bytes of all values."""
        return sum(len(chunk.values) for chunk in self.chunks)


NO_FEATURES = StepFeatures()


@dataclass(slots=True)
class KeptFeatures:
    """Chunks that wait, at most ``max_bytes``: the oldest go first."""

    max_bytes: int = MAX_KEPT_FEATURE_BYTES
    num_bytes: int = 0
    _chunks: deque[Any] = field(default_factory=deque)

    def add(self, chunk: Any) -> None:
        """Keep a chunk."""
        self._chunks.append(chunk)
        self.num_bytes += len(chunk.values)
        while self.num_bytes > self.max_bytes:
            self.num_bytes -= len(self._chunks.popleft().values)

    def take(self) -> tuple[Any, ...]:
        """Hand all over, oldest first, and forget them."""
        chunks = tuple(self._chunks)
        self._chunks.clear()
        self.num_bytes = 0
        return chunks
