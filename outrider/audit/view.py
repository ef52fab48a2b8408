"""One view of an audit: what was tolerated, what was found, and what follows from it."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any


class Verdict(enum.Enum):
    """What a view came to."""

    PASS = "pass"
    FAIL = "fail"
    NOT_RUN = "not run"


@dataclass(frozen=True, slots=True)
class Table:
    """Figures for people."""

    headers: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class View:
    """One view; ``data`` holds the figures behind it, as JSON can hold them.

    ``tolerance`` was declared before anything was measured; ``finding`` says in a sentence why the
    verdict is what it is.
    """

    name: str
    title: str
    verdict: Verdict
    tolerance: str
    finding: str
    tables: Sequence[Table] = ()
    data: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def not_run(cls, name: str, title: str, tolerance: str, reason: str) -> "View":
        """Return a view that could not be made."""
        return cls(name, title, Verdict.NOT_RUN, tolerance, reason)


def verdict_of(passes: bool) -> Verdict:
    """Return PASS or FAIL."""
    return Verdict.PASS if passes else Verdict.FAIL
