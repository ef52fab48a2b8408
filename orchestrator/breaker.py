"""Whether a worker that failed is tried again: a circuit breaker with jittered back-off."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

MAX_PAUSE_S = 300.0


@dataclass(slots=True)
class Breaker:
    """Opens after a number of failures in a row, lets one try pass after a pause, and closes again
    with the first success.

    Pauses double with every failed try up to a bound; jitter keeps many orchestrators from trying
    at once.
    """

    max_failures: int
    first_pause_s: float
    jitter: Callable[[], float] = field(default=lambda: random.uniform(0.5, 1.5))
    num_failures: int = 0
    retry_at: float = 0.0
    _pause_s: float = 0.0

    @property
    def is_open(self) -> bool:
        """True while the worker counts as failing."""
        return self.num_failures >= self.max_failures

    def allows(self, now: float) -> bool:
        """True if the worker may be tried now."""
        return not self.is_open or now >= self.retry_at

    def note_failure(self, now: float, *, weight: int = 1) -> None:
        """Count a failure; one too many opens the breaker, or keeps it open for longer."""
        self.num_failures += weight
        if self.is_open:
            self._pause_s = min(2 * self._pause_s or self.first_pause_s, MAX_PAUSE_S)
            self.retry_at = now + self._pause_s * self.jitter()

    def note_success(self) -> None:
        """Close the breaker."""
        self.num_failures, self.retry_at, self._pause_s = 0, 0.0, 0.0
