"""How long a verification may take before its verifier counts as hung."""

from dataclasses import dataclass

MIN_STEP_TIMEOUT_S = 5.0
TIMEOUT_FACTOR = 10.0
MANY_TOKENS = 64  # from here on a step's time is one of its tokens, below one of its pass


@dataclass(slots=True)
class StepTime:
    """What a step is expected to take at one verifier, learned from its verdicts.

    Shared by its leases.
    """

    s_per_token: float = 0.02
    s_per_pass: float = 0.1

    def timeout_s(self, num_tokens: int) -> float:
        """Return the patience for a step that feeds this many ids."""
        expected = self.s_per_pass + num_tokens * self.s_per_token
        return max(MIN_STEP_TIMEOUT_S, TIMEOUT_FACTOR * expected)

    def observe(self, num_tokens: int, elapsed_s: float) -> None:
        """Learn from a verdict, fast when steps get slower and slowly when they get faster."""
        if num_tokens > MANY_TOKENS:
            sample = elapsed_s / num_tokens
            rate = 0.5 if sample > self.s_per_token else 0.1
            self.s_per_token += rate * (sample - self.s_per_token)
        else:
            rate = 0.5 if elapsed_s > self.s_per_pass else 0.1
            self.s_per_pass += rate * (elapsed_s - self.s_per_pass)
