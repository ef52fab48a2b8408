"""For how many outcomes of a verification the drafter prepares: as told, or as many as fit in."""

from collections.abc import Sequence
from typing import Literal

from orchestrator.estimates import Lane

OutcomeLimit = int | Literal["auto"]
MOST = 8  # that auto chooses; what is likelier than these is most of what happens
EXPLORE = 1 / 32  # share of cycles that try one more than fits, so that estimates stay true


def num_outcomes(limit: OutcomeLimit, lane: Lane, num_pending: int, drawn: float) -> int:
    """Return how many outcomes to ask for while ``num_pending`` tokens are verified.

    Several have no worth but to be ready in time, so auto takes as many as were ready within what
    the verification is expected to take. ``drawn`` in [0, 1) is the cycle's own random number.
    Tokens play no part: in RATIO a draft must not depend on what was drawn.
    """
    if limit != "auto":
        return limit
    known = lane.draft.ahead
    if known.is_empty:
        return 1
    reach = min(MOST, 2 * max(known.buckets))  # beyond it the table knows too little
    verify_ms = lane.verify.times_ms(num_pending)[-1]
    fitting = _last_within(known.values(range(1, reach + 1)), verify_ms)
    return min(fitting + (drawn < EXPLORE), reach)


def _last_within(times_ms: Sequence[float], most_ms: float) -> int:
    """Return how many outcomes take at most so long, at least 1; times are of 1, 2, ... outcomes
    and do not descend."""
    return max(1, sum(each_ms <= most_ms for each_ms in times_ms))
