"""What a drafter's logit margins say about acceptance: one logistic curve per position.

Margins are known only once tokens are drawn, so they may shorten drafts in GREEDY and COUPLED,
where every rule is exact, and never in RATIO.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

MAX_MARGIN = 40.0
RIDGE = 1e-3
NUM_BEFORE_FIT = 50  # observations of a position without which it has no curve
NUM_BETWEEN_FITS = 100


def sigmoid(x: float) -> float:
    """Return 1 / (1 + exp(-x)) without overflow."""
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


@dataclass(slots=True)
class Logistic:
    """P(accepted) = sigmoid(slope * margin + bias), one Newton step per batch of observations.

    A slope below 0 would say that a sure drafter is wrong more often: such a fit is not taken.
    """

    slope: float = 0.0
    bias: float = 0.0
    num_seen: int = 0
    num_fits: int = 0
    gradient: tuple[float, float] = (0.0, 0.0)
    information: tuple[float, float, float] = (0.0, 0.0, 0.0)  # of slope, both, bias

    @property
    def is_fitted(self) -> bool:
        """True once there is a curve."""
        return self.num_fits > 0

    def prob(self, margin: float) -> float:
        """Return the chance of a token with this margin."""
        return sigmoid(self.slope * min(margin, MAX_MARGIN) + self.bias)

    def observe(self, margin: float, hit: bool) -> None:
        """Learn from a token that was reached."""
        margin = min(margin, MAX_MARGIN)
        expected = self.prob(margin)
        error, spread = hit - expected, expected * (1 - expected)
        by_slope, by_bias = self.gradient
        both_slopes, mixed, both_biases = self.information
        self.gradient = by_slope + error * margin, by_bias + error
        self.information = (
            both_slopes + spread * margin * margin,
            mixed + spread * margin,
            both_biases + spread,
        )
        self.num_seen += 1
        due = NUM_BEFORE_FIT if not self.num_fits else NUM_BETWEEN_FITS
        if self.num_seen >= due:
            self._step()

    def _step(self) -> None:
        by_slope, by_bias = self.gradient
        a, b, d = self.information
        a, d = a + RIDGE, d + RIDGE
        determinant = a * d - b * b
        slope = self.slope + (d * by_slope - b * by_bias) / determinant
        bias = self.bias + (a * by_bias - b * by_slope) / determinant
        if slope >= 0:
            self.slope, self.bias = slope, bias
            self.num_fits += 1
        self.num_seen, self.gradient, self.information = 0, (0.0, 0.0), (0.0, 0.0, 0.0)


@dataclass(slots=True)
class MarginModel:
    """The curves of one source."""

    positions: list[Logistic] = field(default_factory=list)

    def prob(self, position: int, margin: float) -> float | None:
        """Return the chance of the token at a position; None where nothing is known yet."""
        if position >= len(self.positions) or not self.positions[position].is_fitted:
            return None
        return self.positions[position].prob(margin)

    def observe(self, margins: Sequence[float], num_accepted: int) -> None:
        """Learn from a chain; positions behind the first rejection were not reached."""
        for position, margin in enumerate(margins[: num_accepted + 1]):
            if position == len(self.positions):
                self.positions.append(Logistic())
            self.positions[position].observe(margin, position < num_accepted)
