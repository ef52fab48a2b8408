"""Rejection sampling and block verification: when draft tokens are kept, what is left to draw.

A draft token x that was drawn from q is kept with a probability that depends on p(x) / q(x), and
what a rejection leaves over is drawn from the part of p that q did not cover; together that is
exactly p. The rules are written over numpy arrays of any numbers: float64 where a request is
served, exact fractions where a test enumerates a law.

Papers: Leviathan et al. 2023 (arXiv 2211.17192) and Chen et al. 2023 (arXiv 2302.01318) for
``rejection``, Sun et al. 2025 (arXiv 2403.10444) for ``block``.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

_SMALLEST = 2.0**-53  # what is smaller is no weight at all


def rejection_thresholds(ratios: Numbers) -> Numbers:
    """Return min(1, p / q) of every draft token: kept while the uniform is below.

    Shapes: ratios [S, K], p / q of the drawn tokens.
    """
    return np.minimum(ratios, 1)


def block_thresholds(
    ratios: Numbers, listed_p: Numbers, listed_q: Numbers, lengths: Ints
) -> tuple[Numbers, Numbers]:
    """Return the probability of ending at each prefix once no longer one was kept, and weights.

    Column i - 1 of the thresholds belongs to the prefix of i tokens; the weight of a prefix, its
    joint ratio, is what scales p in the residual after it. A later token can rescue an earlier one.
    Shapes: ratios [S, K]; listed_p, listed_q [S, K, N], at the ids that each row of the draft
    lists; lengths [S] in 1..K; thresholds [S, K]; weights [S, K + 1].
    """
    num_rows, width = ratios.shape
    weights = [np.full(num_rows, 1, dtype=ratios.dtype)]
    for i in range(width):
        weights.append(np.minimum(weights[-1] * ratios[:, i], 1))
    thresholds = []
    for i in range(1, width + 1):
        joint = weights[i]
        if i == width:
            thresholds.append(joint)
            continue
        mass = residual_mass(joint, listed_p[:, i], listed_q[:, i])
        whole = mass + 1 - joint
        share = np.where(whole == 0, 1, mass / np.where(whole == 0, 1, whole))
        thresholds.append(np.where(i < lengths, share, joint))
    return np.stack(thresholds, 1), np.stack(weights, 1)


def residual_mass(weight: Numbers, listed_p: Numbers, listed_q: Numbers) -> Numbers:
    """Return the mass of max(0, weight * p - q) from the ids where q is not 0.

    Shapes: weight [S]; listed_p, listed_q [S, N]; the mass [S].
    """
    inside = _sum(np.maximum(weight[:, None] * listed_p - listed_q, 0))
    mass: Numbers = inside + weight * np.maximum(1 - _sum(listed_p), 0)
    return mass


def num_accepted(is_block: Bools, passed: Bools, lengths: Ints) -> Ints:
    """Return how many draft tokens are kept.

    ``rejection`` keeps tokens up to the first that failed; ``block`` keeps the longest prefix whose
    test passed, whatever the tests before it said.
    Shapes: is_block, lengths [S]; passed [S, K].
    """
    place = np.arange(1, passed.shape[1] + 1)
    passed = passed & (place <= lengths[:, None])
    leading = np.cumprod(passed, axis=1).sum(1)
    longest = np.max(passed * place, axis=1, initial=0)
    kept: Ints = np.where(is_block, longest, leading).astype(np.int64)
    return kept


def corrected(p: Numbers, q: Numbers, weight: Numbers) -> Numbers:
    """Return max(0, weight * p - q), what the next token is drawn from; p where nothing is left.

    After a whole draft q is 0 and the weight 1, and it is p.
    Shapes: p, q [S, V]; weight [S].
    """
    rest = np.maximum(weight[:, None] * p - q, 0)
    return np.where((rest > _SMALLEST).any(-1, keepdims=True), rest, p)


def _sum(values: Numbers) -> Numbers:
    """Add along the last axis one by one, so that zeros behind a row never change its sum."""
    total: Numbers = np.cumsum(values, axis=-1)[..., -1]
    return total
