"""Operational value: how long completed requests took, class by class, beside their control."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from outrider.packet.finished import Finished, Groups

QUANTILES = (0.5, 0.9, 0.99)
DECIDED, CONTROL, BASELINE = "as the policy says", "control", "all target-only"

MEASURES: Mapping[str, Callable[[Finished], float | None]] = {
    "first token, ms": lambda each: each.receipt.ttft_ms,
    "a later token, ms": lambda each: each.per_token_ms,
    "whole request, ms": lambda each: each.receipt.total_ms,
}


@dataclass(frozen=True, slots=True)
class Line:
    """The quantiles of one measure over some requests."""

    class_name: str
    group: str
    measure: str
    num_requests: int
    quantiles: tuple[float, ...]


def lines(groups: Mapping[str, Groups], baseline: Mapping[str, Groups]) -> list[Line]:
    """Return all quantiles; ``baseline`` has a run of its own, or is empty."""
    found = []
    for name, both in groups.items():
        sides = {DECIDED: both.decided, CONTROL: both.control}
        if name in baseline:
            sides[BASELINE] = (*baseline[name].decided, *baseline[name].control)
        for side, requests in sides.items():
            for measure, of in MEASURES.items():
                values = values_of(requests, of)
                if values:
                    quantiles = tuple(float(each) for each in np.quantile(values, QUANTILES))
                    found.append(Line(name, side, measure, len(values), quantiles))
    return found


def values_of(
    requests: Sequence[Finished], measure: Callable[[Finished], float | None]
) -> list[float]:
    """Return a measure of all requests that have it."""
    return [value for value in map(measure, requests) if value is not None]
