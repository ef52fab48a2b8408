"""Which outcomes of a verification a drafter prepares for: the likeliest ones.

An outcome is how many tokens of the pending draft are accepted, and the target's own token behind
them. As in speculative speculative decoding, arXiv:2603.03251, but each outcome is ranked by what
the drafter knows of this very draft.
"""

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from outrider.sampling import Mode

Candidates = Sequence[tuple[int, float]]
"""Ids that the target may say at a place, with how likely each is."""

MIN_ACCEPTANCE = 0.05
"""Of a token that the drafter does not expect at all; another source may have had its reasons."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """``num_accepted`` pending tokens are kept and ``token_id`` follows them."""

    num_accepted: int
    token_id: int
    probability: float

    def path(self, pending: Sequence[int]) -> tuple[int, ...]:
        """Return what is committed in this outcome."""
        return (*pending[: self.num_accepted], self.token_id)


def rank(
    pending: Sequence[int],
    places: Sequence[Candidates],
    max_outcomes: int,
    *,
    acceptance: Callable[[float], float] = lambda share: share,
) -> list[Outcome]:
    """Return the likeliest outcomes, likeliest first; of equal ones the longer first.

    With c_i = ``acceptance(share of pending token i at its place)``, j tokens are accepted with
    probability c_1 ... c_j (1 - c_{j+1}); what follows is then one of the other ids at that place,
    in proportion to their shares, and behind all K tokens any id.
    Shapes: pending [K]; places [K + 1], each with distinct ids.
    """
    if len(places) != len(pending) + 1:
        raise ValueError(f"{len(places)} places for {len(pending)} pending tokens")
    found: list[Outcome] = []
    reached = 1.0
    for num_accepted, candidates in enumerate(places):
        at_end = num_accepted == len(pending)
        rejected = None if at_end else pending[num_accepted]
        share = next((share for i, share in candidates if i == rejected), 0.0)
        accepted = 0.0 if at_end else min(acceptance(share), 1.0)
        if share < 1.0:
            weight = reached * (1.0 - accepted) / (1.0 - share)
            found += [Outcome(num_accepted, i, weight * p) for i, p in candidates if i != rejected]
        reached *= accepted
    return heapq.nlargest(
        max_outcomes, found, key=lambda each: (each.probability, each.num_accepted)
    )


def acceptance_in(mode: Mode) -> Callable[[float], float]:
    """Return how likely a draft token is accepted, by the share that the drafter gives it.

    In RATIO a drawn token is kept with p / q, more often than its probability says; the root lies
    between that probability and certainty.
    """
    if mode is Mode.RATIO:
        return lambda share: max(share**0.5, MIN_ACCEPTANCE)
    return lambda share: max(share, MIN_ACCEPTANCE)
