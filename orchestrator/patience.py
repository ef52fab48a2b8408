"""How long it still makes sense to wait for a drafter that was late again and again."""

from dataclasses import dataclass

MAX_LATE = 3  # in a row, before nobody waits any more
FIRST_PAUSE_S = 1.0
MAX_PAUSE_S = 30.0


@dataclass(slots=True)
class Patience:
    """What all requests together learn about one drafter; they wait for it or they do not.

    A drafter that hangs would cost every cycle the whole waiting budget. After a few late drafts in
    a row nobody waits for a while, twice as long each time; what arrives by itself is still used,
    and ends the pause.
    """

    num_late: int = 0
    resume_at: float = 0.0
    pause_s: float = FIRST_PAUSE_S

    def allows(self, now: float) -> bool:
        """True if a verification may wait for this drafter."""
        return self.num_late < MAX_LATE or now >= self.resume_at

    def note_late(self, now: float) -> None:
        """A draft was waited for in vain."""
        self.num_late += 1
        if self.num_late >= MAX_LATE:
            self.resume_at = now + self.pause_s
            self.pause_s = min(2 * self.pause_s, MAX_PAUSE_S)

    def note_in_time(self) -> None:
        """A draft was there when it was needed."""
        self.num_late, self.pause_s = 0, FIRST_PAUSE_S
