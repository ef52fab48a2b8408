"""Drafts of requests must not hold up those of a higher priority beyond a budget.

A pass takes as long as its rows do, and its verdicts come to all sequences in it together. So draft
tokens of some lengthen the cycles of others, whoever profits.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from orchestrator.estimates import VerifyCost


@dataclass(slots=True)
class RightOfWay:
    """Who runs at each target, by priority.

    ``budget``: share by which drafts of lower priorities may lengthen the passes of the highest.
    """

    budget: float = 0.1
    _running: dict[str, Counter[int]] = field(default_factory=lambda: defaultdict(Counter))

    @contextmanager
    def hold(self, target: str, priority: int) -> Iterator[None]:
        """Count a request as running."""
        self._running[target][priority] += 1
        try:
            yield
        finally:
            self._running[target][priority] -= 1
            if not self._running[target][priority]:
                del self._running[target][priority]

    def most_tokens(self, target: str, priority: int, cost: VerifyCost) -> int | None:
        """Return the longest draft of a request now; None where no higher priority runs.

        What the budget allows is shared by all requests of lower priorities.
        """
        running = self._running.get(target)
        if not running or priority >= (highest := max(running)):
            return None
        num_others = sum(count for each, count in running.items() if each < highest)
        return cost.rows_within(self.budget) // max(num_others, 1)
