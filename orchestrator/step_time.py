"""How long a verification may take before its verifier counts as hung."""

import math
from dataclasses import dataclass

MANY_TOKENS = 64  # from here on a step's time is one of its tokens, below one of its pass


@dataclass(slots=True)
class StepTime:
    """What a step is expected to take at one verifier, learned from its verdicts.

    Shared by its leases. A verifier works on all steps that it was sent, so a step may take as long
    as all of them: ``num_waiting`` counts the ids that wait for a verdict.
    Raises: ValueError unless every time and the factor are above 0.
    """

    min_timeout_s: float = 5.0
    timeout_factor: float = 10.0
    s_per_token: float = 0.02
    s_per_pass: float = 0.1
    num_waiting: int = 0

    def __post_init__(self) -> None:
        for name in ("min_timeout_s", "timeout_factor", "s_per_token", "s_per_pass"):
            value = getattr(self, name)
            if not 0 < value < math.inf:
                raise ValueError(f"{name} must be above 0 and finite, not {value}")

    def timeout_s(self, num_tokens: int) -> float:
        """Return the patience for a verdict where this many ids wait."""
        expected = self.s_per_pass + num_tokens * self.s_per_token
        return max(self.min_timeout_s, self.timeout_factor * expected)

    def observe(self, num_tokens: int, elapsed_s: float) -> None:
        """Learn from a verdict, fast when steps get slower and slowly when they get faster.

        ``num_tokens`` waited when its step was sent, those of the step included.
        """
        if num_tokens > MANY_TOKENS:
            sample = elapsed_s / num_tokens
            rate = 0.5 if sample > self.s_per_token else 0.1
            self.s_per_token += rate * (sample - self.s_per_token)
        else:
            rate = 0.5 if elapsed_s > self.s_per_pass else 0.1
            self.s_per_pass += rate * (elapsed_s - self.s_per_pass)
