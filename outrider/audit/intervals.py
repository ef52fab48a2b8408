"""Confidence intervals."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

NUM_RESAMPLES = 1000


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and the interval around it."""

    value: float
    low: float
    high: float

    def told(self, form: str = ".3f") -> str:
        """Return it in words."""
        return f"{self.value:{form}} ({self.low:{form}} to {self.high:{form}})"

    def as_json(self) -> dict[str, float]:
        """Return it as JSON holds it."""
        return {"value": self.value, "low": self.low, "high": self.high}


def share(count: int, total: int, confidence: float) -> Interval:
    """Return a share with Wilson's interval; all that is possible where nothing was counted."""
    from scipy import stats

    if total == 0:
        return Interval(0.0, 0.0, 1.0)
    found = stats.binomtest(count, total).proportion_ci(confidence, method="wilson")
    return Interval(count / total, float(found.low), float(found.high))


def difference(one: Interval, other: Interval) -> Interval:
    """Return ``one - other`` of two independent shares by Newcombe's method (his tenth)."""
    value = one.value - other.value
    down = float(np.hypot(one.value - one.low, other.high - other.value))
    up = float(np.hypot(one.high - one.value, other.value - other.low))
    return Interval(value, value - down, value + up)


def mean(values: Sequence[float] | Floats, confidence: float) -> Interval:
    """Return a mean with the normal interval."""
    from scipy import stats

    array = np.asarray(values, dtype=np.float64)
    if len(array) < 2:
        return Interval(float(array.mean()) if len(array) else 0.0, -np.inf, np.inf)
    half = float(stats.norm.ppf(0.5 + confidence / 2) * array.std(ddof=1) / np.sqrt(len(array)))
    return Interval(float(array.mean()), float(array.mean()) - half, float(array.mean()) + half)


def bootstrap(
    values: Floats, statistic: Callable[..., Floats], confidence: float, seed: int
) -> Interval:
    """Return a statistic of values with the percentile interval of values that are drawn again.

    ``statistic`` takes an array and the axis along which it works, as numpy's own do.
    """
    from scipy import stats

    value = float(statistic(values))
    if len(values) < 2:
        return Interval(value, -np.inf, np.inf)
    found = stats.bootstrap(
        (values,),
        statistic,
        n_resamples=NUM_RESAMPLES,
        confidence_level=confidence,
        method="percentile",
        rng=seed,
    ).confidence_interval
    return Interval(value, float(found.low), float(found.high))
