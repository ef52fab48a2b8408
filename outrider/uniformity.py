"""Whether tokens follow the law that they should, one number a token.

Put all ids in an order that does not depend on the token y. If y was drawn from p, then the
probability of the ids before y, plus v p(y) with a random v, is uniform on (0, 1), whatever p is;
and so are the numbers of all tokens of a text, independently of one another. All tokens count, in
their order: accepted, recovered and bonus ones. A selection of them is not uniform.

The order decides which faults show. By descending p it is those that make tokens likelier or rarer
than they are. By descending q / p, where a draft token was drawn from q, it is those of acceptance:
whatever is wrong there pulls tokens towards what the draft prefers.
"""

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

BETS = (0.03, 0.1, 0.3)


def rank_uniforms(
    probs: Floats, token_ids: Ints, randoms: Floats, draft_probs: Floats | None = None
) -> Floats:
    """Return the number of each token.

    Ids are in the order of ``draft_probs`` / ``probs``, then of ``probs``, both descending, then of
    the ids themselves. A row of ``draft_probs`` that is 0 leaves the order to ``probs``.
    Shapes: probs, draft_probs [N, V], rows of probs sum to 1; token_ids [N]; randoms [N] in (0, 1);
    result [N].
    """
    at = token_ids[:, None]
    own = np.take_along_axis(probs, at, 1)
    is_before = (probs > own) | ((probs == own) & (np.arange(probs.shape[1]) < at))
    if draft_probs is not None:
        own_draft = np.take_along_axis(draft_probs, at, 1)
        # q / p > own q / own p, without divisions by 0: what has no mass counts for nothing
        ahead, behind = draft_probs * own, own_draft * probs
        is_before = (ahead > behind) | ((ahead == behind) & is_before)
    numbers: Floats = np.where(is_before, probs, 0.0).sum(1) + randoms * own[:, 0]
    return np.clip(numbers, 0.0, 1.0)


@dataclass(slots=True)
class Evidence:
    """Evidence against uniformity that may be looked at after every number.

    Each detector bets a share of its capital on one way in which numbers can be off (too small, too
    near the ends, lopsided, and the reverse of each), and begins anew with what it had at first
    where it would hold less.
    Under the right law the mean of their capitals needs at least x numbers, on average, to reach x
    (an e-detector: Shin, Ramdas and Rinaldo 2023, arXiv 2203.03532).
    """

    num_numbers: int = 0
    _log_capitals: Floats = field(
        default_factory=lambda: np.full(3 * 2 * len(BETS), -math.inf, dtype=np.float64)
    )

    def add(self, numbers: Floats) -> None:
        """Take in numbers [N] in the order of their tokens."""
        for gains in np.log1p(_bets(numbers)):  # [detectors]
            self._log_capitals = np.maximum(self._log_capitals, 0.0) + gains
        self.num_numbers += len(numbers)

    @property
    def log10(self) -> float:
        """Common logarithm of the mean capital; 0 before the first number."""
        if not self.num_numbers:
            return 0.0
        largest = float(self._log_capitals.max())
        mean = np.exp(self._log_capitals - largest).mean()
        return (largest + math.log(mean)) / math.log(10)


def _bets(numbers: Floats) -> Floats:
    """Return what each detector wins on each number, as shares of its capital, [N, detectors].

    The ways are the first shifted Legendre polynomials, which are 0 on average and at most
    sqrt(7), so that no bet can lose all.
    """
    u = numbers
    ways = np.stack(
        [
            math.sqrt(3) * (2 * u - 1),
            math.sqrt(5) * (6 * u**2 - 6 * u + 1),
            math.sqrt(7) * (20 * u**3 - 30 * u**2 + 12 * u - 1),
        ],
        axis=-1,
    )  # [N, 3]
    shares = np.array([*BETS, *(-bet for bet in BETS)])
    bets: Floats = (ways[:, :, None] * shares).reshape(len(u), -1)
    return bets
