"""Speculation of a source is switched off where it does not pay, and tried again now and then."""

from dataclasses import dataclass

from outrider.gain import MIN_GAIN

NUM_BEFORE_OFF = 32  # cycles in a row, of all requests
EAGER_PROBES = 8  # what turned bad may be good again soon
BETWEEN_EAGER = 40  # cycles of all requests between two of the first probes
BETWEEN_PROBES = 256  # between later ones; up to there the distance doubles


@dataclass(slots=True)
class OffSwitch:
    """Of one source for one target; counted over the cycles of all requests, not over time."""

    is_off: bool = False
    num_without_gain: int = 0
    num_since_probe: int = 0
    num_probes: int = 0
    """Since the source was switched off."""

    def note(self, gain: float, least: float = MIN_GAIN) -> None:
        """What drafts are worth now, such as the gain that a cycle's best length promises; below
        ``least`` it does not do."""
        if gain >= least:
            self.is_off, self.num_without_gain = False, 0
            return
        self.num_without_gain += 1
        if not self.is_off and self.num_without_gain >= NUM_BEFORE_OFF:
            self.is_off, self.num_since_probe, self.num_probes = True, 0, 0

    @property
    def distance(self) -> int:
        """Cycles before the next probe."""
        doublings = max(0, self.num_probes - EAGER_PROBES + 1)
        return min(BETWEEN_EAGER << min(doublings, 8), BETWEEN_PROBES)

    def grants_probe(self) -> bool:
        """Count a cycle that goes without drafts; True if it shall try some instead."""
        self.num_since_probe += 1
        if self.num_since_probe < self.distance:
            return False
        self.num_since_probe = 0
        self.num_probes += 1
        return True
