"""Committed tokens per millisecond that a draft of some length promises."""

from collections.abc import Sequence
from itertools import accumulate
from operator import mul

from orchestrator.acceptance_estimate import SequenceAcceptance
from orchestrator.estimates import Lane


def expected_rates(lane: Lane, own: SequenceAcceptance, longest: int) -> list[float]:
    """Return the rates by draft length from 0 to ``longest``, before anything is drafted.

    ``own`` is what the sequence has seen itself.
    """
    arrival = lane.draft.arrival.value
    cycles_ms = lane.draft.cycles_ms(longest, lane.verify)
    accepted = [0.0, *_expected_accepted(lane, own, longest)]
    return [
        (1 + arrival * tokens) / cycle_ms
        for tokens, cycle_ms in zip(accepted, cycles_ms, strict=True)
    ]


def rates_by_margin(lane: Lane, own: SequenceAcceptance, margins: Sequence[float]) -> list[float]:
    """Return the rates of verifying 0 to all tokens of a chain that is there, by its logit
    margins."""

    def prob(position: int, margin: float) -> float:
        known = lane.source.margins.prob(position, margin)
        return own.conditional(position, lane.source.acceptance) if known is None else known

    survivals = accumulate((prob(*each) for each in enumerate(margins)), mul)
    expected = accumulate(survivals, initial=1.0)
    times_ms = lane.verify.times_ms(len(margins))
    return [tokens / ms for tokens, ms in zip(expected, times_ms, strict=True)]


def _expected_accepted(lane: Lane, own: SequenceAcceptance, longest: int) -> list[float]:
    """Return the accepted tokens to expect of drafts of 1 to ``longest`` tokens."""
    if lane.source.proposes_trees:
        return lane.source.accepted.values(range(1, longest + 1))
    survivals = accumulate(own.conditionals(longest, lane.source.acceptance), mul)
    return list(accumulate(survivals))
