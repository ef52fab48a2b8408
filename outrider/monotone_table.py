"""What grows with a count and is learned from noisy samples: the cost tables and their like."""

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

RATE = 0.1  # of the moving average of a bucket that has had many samples
FRESH_WEIGHT = 4  # samples that a bucket still stands for once it may be out of date
EXACT_UP_TO = 16
BUCKETS_PER_OCTAVE = 8


def bucket_of(count: int) -> int:
    """Return the count itself where small, else the nearest one of a few per power of two."""
    if count <= EXACT_UP_TO:
        return count
    step = 1 << max(count.bit_length() - BUCKETS_PER_OCTAVE.bit_length(), 0)
    return (count + step // 2) // step * step


@dataclass(slots=True)
class Bucket:
    """A moving average; ``weight`` is the number of samples, as far as they still count."""

    mean: float = 0.0
    weight: int = 0


@dataclass(slots=True)
class MonotoneTable:
    """A value by a count: moving averages, made non-decreasing, with lines in between.

    Left of all samples it stays as it is there; right of them it goes on with the slope of the last
    line, 0 where there is only one. Empty it is 0. ``max_jump`` bounds a sample to so many times
    what is known, so that one hiccup is not remembered for long. ``from_origin`` fixes the value at
    count 0 to 0.
    """

    max_jump: float = math.inf
    from_origin: bool = False
    buckets: dict[int, Bucket] = field(default_factory=dict)
    num_changes: int = 0
    """Samples and refreshes so far."""
    _fitted: tuple[list[int], list[float]] | None = None
    _ascends: bool = False

    @property
    def is_empty(self) -> bool:
        """True before the first sample."""
        return not self.buckets

    def observe(self, count: int, value: float) -> None:
        """Add a sample."""
        at = bucket_of(count)
        bucket = self.buckets.setdefault(at, Bucket())
        if bucket.weight:
            value = min(value, self.max_jump * bucket.mean)
        self.num_changes += 1
        bucket.weight += 1
        bucket.mean += max(RATE, 1 / bucket.weight) * (value - bucket.mean)
        self._refit(at, bucket.mean)

    def refresh(self) -> None:
        """Let the next samples count for more than the old ones."""
        for bucket in self.buckets.values():
            bucket.weight = min(bucket.weight, FRESH_WEIGHT)
        self.num_changes += 1
        self._fitted = None

    def __call__(self, count: int) -> float:
        """Return the value at a count."""
        return self.values((count,))[0]

    def values(self, ascending: Sequence[int]) -> list[float]:
        """Return the values at counts that do not descend, in one walk."""
        if self._fitted is None:
            self._fitted = self._fit()
        counts, values = self._fitted
        if len(counts) < 2:
            return [values[0] if values else 0.0] * len(ascending)
        found, right = [], 1
        for count in ascending:
            while right < len(counts) - 1 and counts[right] <= count:
                right += 1
            x, y = counts[right - 1], values[right - 1]
            slope = (values[right] - y) / (counts[right] - x)
            found.append(y + slope * (count - x) if count > x else y)
        return found

    def _refit(self, at: int, mean: float) -> None:
        """Take note of a new mean; where all means ascend as they are, that is all there is to
        do."""
        if self._fitted is None:
            return
        counts, values = self._fitted
        index = bisect_left(counts, at)
        is_known = index < len(counts) and counts[index] == at and (at or not self.from_origin)
        ascends = (not index or values[index - 1] < mean) and (
            index + 1 >= len(counts) or mean < values[index + 1]
        )
        if is_known and self._ascends and ascends:
            values[index] = mean
        else:
            self._fitted = None

    def _fit(self) -> tuple[list[int], list[float]]:
        samples = [(at, each.mean, each.weight) for at, each in sorted(self.buckets.items())]
        if self.from_origin and samples:
            samples = [(0, 0.0, 1), *(each for each in samples if each[0] > 0)]
        means = [mean for _, mean, _ in samples]
        self._ascends = all(one < other for one, other in pairwise(means))
        counts = [at for at, _, _ in samples]
        return counts, means if self._ascends else non_decreasing((v, w) for _, v, w in samples)


def non_decreasing(samples: Iterable[tuple[float, int]]) -> list[float]:
    """Return the non-decreasing values that are nearest to weighted ones, in squares.

    Paper: Ayer et al. 1955, pool adjacent violators.
    """
    pools: list[tuple[float, int, int]] = []  # mean, weight, number of values
    for value, weight in samples:
        mean, heavy, size = value, weight, 1
        while pools and pools[-1][0] > mean:
            other, other_weight, other_size = pools.pop()
            mean = (heavy * mean + other_weight * other) / (heavy + other_weight)
            heavy, size = heavy + other_weight, size + other_size
        pools.append((mean, heavy, size))
    return [mean for mean, _, size in pools for _ in range(size)]
