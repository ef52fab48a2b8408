"""What a draft length is worth: expected committed tokens over the time of a cycle.

The orchestrator chooses draft lengths by it, ``outrider pair-check`` advises by it; the symbols are
those of ``docs/draft-length.md``. All lists are by draft length, from 0 on.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate
from operator import mul

MIN_GAIN = 1.03  # predicted rate over target-only below which drafts do not pay


def accepted_of_chain(conditionals: Iterable[float]) -> list[float]:
    """Return the accepted tokens to expect of chains of 0, 1, 2, ... tokens.

    ``conditionals``: chance of each position, given that all before it were accepted.
    """
    return [0.0, *accumulate(accumulate(conditionals, mul))]


def rows_of_passes(num_sharing: float, num_prompt_rows: float, longest: int) -> list[int]:
    """Return the rows of a pass in which every sequence has a draft of 0 to ``longest`` tokens.

    Each sequence pays for the rows of all, so what it would choose for itself alone it must count
    as chosen by all; rows of prompts stay as they are.
    """
    return [round(num_prompt_rows + num_sharing * num_rows) for num_rows in range(1, longest + 2)]


def cycles_ms(
    waits_ms: Sequence[float], verifications_ms: Sequence[float], arrival: float
) -> list[float]:
    """Return what cycles take: the wait for the draft, then a verification with or without it.

    ``arrival``: share of wanted drafts that come.
    """
    without_ms = verifications_ms[0]
    with_ms = (
        wait_ms + arrival * verify_ms + (1 - arrival) * without_ms
        for wait_ms, verify_ms in zip(waits_ms[1:], verifications_ms[1:], strict=True)
    )
    return [without_ms, *with_ms]


def rates(accepted: Sequence[float], cycles: Sequence[float], arrival: float) -> list[float]:
    """Return committed tokens per millisecond."""
    return [
        (1 + arrival * tokens) / cycle_ms for tokens, cycle_ms in zip(accepted, cycles, strict=True)
    ]


def best_length(by_length: Sequence[float]) -> tuple[int, float]:
    """Return the most promising length but 0, and its rate over that of 0."""
    best = max(range(1, len(by_length)), key=by_length.__getitem__)
    return best, by_length[best] / by_length[0]
