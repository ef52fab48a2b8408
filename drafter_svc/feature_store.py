"""Hidden states of the target that a lease was given and has not used yet."""

from collections import deque
from dataclasses import dataclass, field

from outrider.features import Features

MAX_STORED_BYTES = 64 << 20


@dataclass(slots=True)
class FeatureStore:
    """Keeps at most ``max_bytes``; the oldest go first.

    ``num_dropped`` counts parts that did.
    """

    max_bytes: int = MAX_STORED_BYTES
    num_dropped: int = 0
    num_bytes: int = 0
    _parts: deque[Features] = field(default_factory=deque)

    def add(self, features: Features) -> None:
        """Keep a part."""
        self._parts.append(features)
        self.num_bytes += features.num_bytes
        while self.num_bytes > self.max_bytes:
            self.num_bytes -= self._parts.popleft().num_bytes
            self.num_dropped += 1

    def take(self) -> tuple[Features, ...]:
        """Hand over all parts in the order in which they came; they are the caller's now."""
        parts = tuple(self._parts)
        self._parts.clear()
        self.num_bytes = 0
        return parts
