"""Which outcomes of a verification a drafter prepares for: the likeliest ones.

An outcome is how many tokens of the pending draft are accepted, and the target's own token behind
them. As in speculative speculative decoding, arXiv:2603.03251, but each outcome is ranked by what
the drafter knows of this very draft.
"""

import heapq
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from outrider.sampling import Mode

Candidates = Sequence[tuple[int, float]]
"""Ids that the target may say at a place, with how likely each is."""

MIN_SHARE = 0.02
"""Of a token that the drafter does not expect at all; another source may have had its reasons."""
RATIO_SHIFT = 1.0
RATE = 0.1  # at which odds follow verdicts
MAX_SHIFT = 6.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """``num_accepted`` pending tokens are kept and ``token_id`` follows them."""

    num_accepted: int
    token_id: int
    probability: float

    def path(self, pending: Sequence[int]) -> tuple[int, ...]:
        """Return what is committed in this outcome."""
        return (*pending[: self.num_accepted], self.token_id)


@dataclass(slots=True)
class Calibration:
    """How often draft tokens are accepted, by the share that the drafter gives them.

    A drafter may be far surer than it is right, or the other way round, and then the outcomes of
    long or of short acceptance would crowd the others out. So the odds are shifted by what
    verdicts say: log odds of acceptance = log odds of the share + ``shift``.
    """

    shift: float = 0.0

    @classmethod
    def of(cls, mode: Mode) -> "Calibration":
        """Begin; in RATIO a drawn token is kept with p / q, more often than its share says."""
        return cls(RATIO_SHIFT if mode is Mode.RATIO else 0.0)

    def acceptance(self, share: float) -> float:
        """Return how likely a token with this share is accepted."""
        share = min(max(share, MIN_SHARE), 1 - MIN_SHARE)
        return 1 / (1 + math.exp(-math.log(share / (1 - share)) - self.shift))

    def learn(self, shares: Sequence[float], num_accepted: int) -> None:
        """Take in a verdict on a draft whose tokens had these shares."""
        for index, share in enumerate(shares[: num_accepted + 1]):
            error = (index < num_accepted) - self.acceptance(share)
            self.shift = min(max(self.shift + RATE * error, -MAX_SHIFT), MAX_SHIFT)


def as_it_is(share: float) -> float:
    """Take a share for a probability."""
    return share


def rank(
    pending: Sequence[int],
    places: Sequence[Candidates],
    max_outcomes: int,
    *,
    acceptance: Callable[[float], float] = as_it_is,
    rightness: Callable[[float], float] = as_it_is,
) -> list[Outcome]:
    """Return the likeliest outcomes, likeliest first; of equal ones the longer first.

    With c_i = ``acceptance(share of pending token i at its place)``, j tokens are accepted with
    probability c_1 ... c_j (1 - c_{j+1}); what follows is then one of the other ids at that place,
    in proportion to their shares. Behind all K tokens the first id follows with
    ``rightness(its share)``, else one of the others in proportion.
    Shapes: pending [K]; places [K + 1], each with distinct ids, likeliest first.
    """
    if len(places) != len(pending) + 1:
        raise ValueError(f"{len(places)} places for {len(pending)} pending tokens")
    found: list[Outcome] = []
    reached = 1.0

    def add_others(num_accepted: int, but: int | None, share: float, weight: float) -> None:
        if share < 1.0:
            scale = weight / (1.0 - share)
            found.extend(
                Outcome(num_accepted, i, scale * own) for i, own in places[num_accepted] if i != but
            )

    for index, token_id in enumerate(pending):
        share = dict(places[index]).get(token_id, 0.0)
        accepted = min(acceptance(share), 1.0)
        add_others(index, token_id, share, reached * (1.0 - accepted))
        reached *= accepted
    if places[-1]:
        guess, share = places[-1][0]
        right = min(rightness(share), 1.0)
        found.append(Outcome(len(pending), guess, reached * right))
        add_others(len(pending), guess, share, reached * (1.0 - right))
    return heapq.nlargest(
        max_outcomes, found, key=lambda each: (each.probability, each.num_accepted)
    )
