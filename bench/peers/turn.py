"""What a driver is asked to do and what it answers, one JSON object a line.

Asked: a Turn. Answered: first ``{"ready": {...}}``, then a Played for each turn, or
``{"error": "..."}``.
"""

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Turn:
    """Prompts to be answered greedily, so many at once."""

    mode: str
    """Which of the driver's ways to decode."""
    prompts: list[list[int]]
    """Token ids of each prompt."""
    num_tokens: int
    """Longest answer."""
    num_streams: int
    salt: str
    """Whatever was cached under another salt is not used."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came for one prompt, and when."""

    ids: list[int]
    arrivals: list[tuple[float, int]]
    """Seconds since the prompt was sent, and how many tokens came; one entry a target pass."""
    times_ms: dict[str, float] = field(default_factory=dict)
    """Where the time went, in milliseconds by part; empty where the engine does not tell."""


@dataclass(frozen=True, slots=True)
class Played:
    """A turn as it went; answers in the order of the prompts."""

    answers: list[Answer]
    wall_s: float
    cpu_s: float
    """CPU seconds of the engine's processes."""
    peak_rss_bytes: int
    """Of the engine's processes together, during this turn."""

    @classmethod
    def from_json(cls, played: dict[str, Any]) -> "Played":
        """Return what ``asdict`` gave, after a way through JSON."""
        answers = [
            Answer(each["ids"], [(at_s, num) for at_s, num in each["arrivals"]], each["times_ms"])
            for each in played["answers"]
        ]
        return cls(answers, played["wall_s"], played["cpu_s"], played["peak_rss_bytes"])
