"""Committed tokens per millisecond that a draft of some length promises."""

from collections.abc import Sequence
from itertools import accumulate
from operator import mul

from orchestrator.acceptance_estimate import SequenceAcceptance
from orchestrator.estimates import Lane
from outrider.gain import accepted_of_chain, rates


def expected_rates(lane: Lane, own: SequenceAcceptance, longest: int) -> list[float]:
    """Return the rates by draft length from 0 to ``longest``, before anything is drafted.

    ``own`` is what the sequence has seen itself.
    """
    cycles_ms = lane.draft.cycles_ms(longest, lane.verify)
    return rates(_expected_accepted(lane, own, longest), cycles_ms, lane.draft.arrival.value)


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
    """Return the accepted tokens to expect of drafts of 0 to ``longest`` tokens."""
    if lane.source.proposes_trees:
        return [0.0, *lane.source.accepted.values(range(1, longest + 1))]
    return accepted_of_chain(own.conditionals(longest, lane.source.acceptance))
