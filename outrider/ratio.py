"""Acceptance by draft probabilities: rejection sampling token by token, and block verification.

A draft token x that was drawn from q is kept with a probability that depends on p(x) / q(x), and
what a rejection leaves over is drawn from the part of p that q did not cover; together that is
exactly p. The rules are written over numpy arrays of any numbers: float64 where a request is
served, exact fractions where a test enumerates a law.

Papers: Leviathan et al. 2023 (arXiv 2211.17192) and Chen et al. 2023 (arXiv 2302.01318) for
``rejection``, Sun et al. 2025 (arXiv 2403.10444) for ``block``.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from outrider import elementary, noise, wire
from outrider.draft import Draft
from outrider.sampling import AcceptanceRule

Numbers = npt.NDArray[Any]
Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

_ONE = 2.0**52  # a probability of 1 as a fixed-point weight
_SMALLEST = 2.0**-53  # what is smaller is no weight at all
_CHUNK = 2**22  # entries of full rows worked on at a time; bounds memory


# --- the rules --------------------------------------------------------------------------------


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


# --- draws ------------------------------------------------------------------------------------


def draw_counts(counts: Sequence[Ints], uniforms: Floats) -> list[int]:
    """Return for each list of counts the index that a uniform picks, by cumulative counts."""
    picked = np.floor(uniforms * wire.TOTAL_COUNT)
    return [
        int(np.searchsorted(np.cumsum(row), at, side="right"))
        for row, at in zip(counts, picked, strict=True)
    ]


def draw_ascending(weights: Floats, uniforms: Floats) -> tuple[Ints, Floats]:
    """Draw an id per row by the inverse of its cumulative weights over ascending ids.

    Also returns how near the uniform was to the next id, as a probability. Sums are taken in fixed
    point, so that every order and width gives the same.
    Shapes: weights [S, V], their rows need not sum to 1; uniforms [S].
    """
    fixed = np.rint(weights * _ONE).astype(np.int64).cumsum(-1)
    totals = fixed[:, -1]
    picked = np.minimum(np.floor(uniforms * totals).astype(np.int64), totals - 1)
    ids = np.array(
        [np.searchsorted(row, at, side="right") for row, at in zip(fixed, picked, strict=True)],
        dtype=np.int64,
    )
    upper = np.take_along_axis(fixed, ids[:, None], 1)[:, 0]
    lower = np.where(
        ids > 0, np.take_along_axis(fixed, np.maximum(ids - 1, 0)[:, None], 1)[:, 0], 0
    )
    return ids, np.minimum(picked - lower, upper - picked) / totals


def proposal_uniforms(
    keys: Sequence[int], nodes: Sequence[int], positions: Sequence[int], cycles: Sequence[int]
) -> Floats:
    """Return the numbers that draft tokens are drawn with, one per token."""
    return _uniforms(keys, nodes, positions, cycles, noise.Stream.PROPOSAL)


def _uniforms(
    keys: Sequence[int],
    a: Sequence[int] | Ints,
    positions: Sequence[int],
    cycles: Sequence[int],
    stream: noise.Stream,
) -> Floats:
    cpu = torch.device("cpu")
    rows, places, turns = (torch.tensor(each, dtype=torch.int64) for each in (a, positions, cycles))
    drawn = noise.uniform(noise.key_tensor(keys, device=cpu), rows, places, turns, stream)
    uniforms: Floats = drawn.numpy()
    return uniforms


# --- chains -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Proposed:
    """A draft with the counts that each of its tokens was drawn from.

    ``listed`` holds ids and counts [N] of every token. A point mass lists its own token alone;
    ``is_sampled`` is False for a draft of those. ``is_corrected`` says that the last token is not
    the drafter's but the verifier's own draw from the drafter's counts.
    """

    token_ids: tuple[int, ...] = ()
    listed: tuple[tuple[Ints, Ints], ...] = ()
    is_sampled: bool = False
    is_corrected: bool = False

    @classmethod
    def of(cls, draft: Draft) -> "Proposed":
        """Read a valid draft."""
        if draft.distributions:
            listed = tuple(wire.unpack(*each) for each in draft.distributions)
            return cls(draft.token_ids, listed, is_sampled=True)
        whole = np.array([wire.TOTAL_COUNT], dtype=np.int64)
        ids = np.array(draft.token_ids, dtype=np.int64)
        return cls(draft.token_ids, tuple((ids[i : i + 1], whole) for i in range(len(ids))))

    def redrawn(
        self, *, proposal_key: int, base_position: int, cycle: int
    ) -> "tuple[Proposed, str]":
        """Return the draft as its counts and the proposal key draw it, and what was wrong with it.

        Behind the first wrong token nothing is left, since what follows was drawn for that one; in
        its place stands the right one. Dropping the whole draft instead would keep the drafts
        whose tokens happen to be right, which is a choice by tokens and changes the law.
        """
        if not self.is_sampled:
            return self, ""
        num = len(self.token_ids)
        positions = range(base_position, base_position + num)
        uniforms = proposal_uniforms([proposal_key] * num, range(num), positions, [cycle] * num)
        indices = draw_counts([counts for _, counts in self.listed], uniforms)
        for node, (index, (ids, _)) in enumerate(zip(indices, self.listed, strict=True)):
            right, stated = int(ids[index]), self.token_ids[node]
            if right != stated:
                tokens = (*self.token_ids[:node], right)
                corrected = Proposed(tokens, self.listed[: node + 1], True, is_corrected=True)
                return corrected, f"token_ids[{node}]: {stated}, the proposal key draws {right}"
        return self, ""


@dataclass(frozen=True, slots=True)
class Chain:
    """One sequence's draft, by which rule it is judged, and where its noise comes from."""

    proposed: Proposed
    rule: AcceptanceRule
    key: int
    base_position: int
    cycle: int

    def __len__(self) -> int:
        return len(self.proposed.token_ids)

    @property
    def is_block(self) -> bool:
        """True where block verification decides: point masses are always judged one by one."""
        return self.rule is AcceptanceRule.BLOCK and self.proposed.is_sampled


@dataclass(frozen=True, slots=True)
class Workings:
    """Everything that decided a batch of chains.

    Shapes: S chains, K the longest draft; drawn_p, drawn_q, thresholds, uniforms [S, K], padded
    behind a draft's end; accepted, next_ids, final_uniforms, margins [S]; weights [S, K + 1].
    """

    drawn_p: Floats
    drawn_q: Floats
    thresholds: Floats
    uniforms: Floats
    weights: Floats
    accepted: Ints
    final_uniforms: Floats
    next_ids: Ints
    margins: Floats


def verify(chains: Sequence[Chain], log_probs: torch.Tensor) -> Workings:
    """Judge drafts and draw what follows them; every chain's result is the one it gets alone.

    Shapes: log_probs [sum of K + 1, V] float32, processed, the rows of the chains one after the
    other; -inf outside the support.
    """
    lengths = np.array([len(chain) for chain in chains], dtype=np.int64)
    starts = np.cumsum([0, *(lengths[:-1] + 1)])
    drafts = _drafts(chains, lengths, starts, log_probs)
    ratios = drafts.drawn_p / drafts.drawn_q
    is_block = np.array([chain.is_block for chain in chains])
    in_blocks, joint = block_thresholds(ratios, drafts.listed_p, drafts.listed_q, lengths)
    thresholds = np.where(is_block[:, None], in_blocks, rejection_thresholds(ratios))
    weights = np.where(is_block[:, None], joint, 1.0)
    rows = np.arange(thresholds.shape[1])
    uniforms = _acceptance_uniforms(chains, len(rows))
    accepted = num_accepted(is_block, uniforms < thresholds, lengths)

    keys, bases = [chain.key for chain in chains], [chain.base_position for chain in chains]
    cycles = [chain.cycle for chain in chains]
    final_uniforms = _uniforms(keys, accepted, bases, cycles, noise.Stream.RECOVERY)
    next_ids, gaps = _next(chains, accepted, weights, log_probs, starts, final_uniforms)
    # Only tests that decided count: up to the first failure, or from the kept prefix on.
    decided = np.where(
        is_block[:, None], rows >= accepted[:, None] - 1, rows <= accepted[:, None]
    ) & (rows < lengths[:, None])
    distances = np.where(decided, np.abs(uniforms - thresholds), np.inf)
    margins = np.minimum(gaps, np.min(distances, axis=1, initial=np.inf))
    return Workings(
        drawn_p=drafts.drawn_p,
        drawn_q=drafts.drawn_q,
        thresholds=thresholds,
        uniforms=uniforms,
        weights=weights,
        accepted=accepted,
        final_uniforms=final_uniforms,
        next_ids=next_ids,
        margins=margins,
    )


@dataclass(frozen=True, slots=True)
class _Drafts:
    """Probabilities of a batch of drafts, padded: p = 0 and q = 0 in lists, p = 0 and q = 1 of
    drawn tokens."""

    drawn_p: Floats  # [S, K]
    drawn_q: Floats  # [S, K]
    listed_p: Floats  # [S, K, N]
    listed_q: Floats  # [S, K, N]


def _drafts(
    chains: Sequence[Chain], lengths: Ints, starts: Ints, log_probs: torch.Tensor
) -> _Drafts:
    width = max(1, int(lengths.max()))
    num_listed = max((len(ids) for chain in chains for ids, _ in chain.proposed.listed), default=1)
    shape = (len(chains), width, num_listed)
    ids, q = np.zeros(shape, dtype=np.int64), np.zeros(shape)
    drawn, drawn_q = np.zeros(shape[:2], dtype=np.int64), np.ones(shape[:2])
    for s, chain in enumerate(chains):
        drawn[s, : len(chain)] = chain.proposed.token_ids
        for i, (row_ids, counts) in enumerate(chain.proposed.listed):
            ids[s, i, : len(row_ids)] = row_ids
            q[s, i, : len(row_ids)] = counts / wire.TOTAL_COUNT
            drawn_q[s, i] = q[s, i, : len(row_ids)][row_ids == drawn[s, i]].item()
    place = np.arange(width)
    is_real = place < lengths[:, None]  # [S, K]
    row = np.where(is_real, starts[:, None] + place, 0)
    wanted = np.concatenate([ids, drawn[:, :, None]], axis=2)  # [S, K, N + 1]
    probs = _probs(log_probs[torch.from_numpy(row)[:, :, None], torch.from_numpy(wanted)])
    return _Drafts(
        drawn_p=np.where(is_real, probs[:, :, -1], 0.0),
        drawn_q=drawn_q,
        listed_p=np.where(q > 0, probs[:, :, :-1], 0.0),
        listed_q=q,
    )


def _probs(log_probs: torch.Tensor) -> Floats:
    probs: Floats = elementary.exp(log_probs.to(torch.float64)).cpu().numpy()
    return probs


def _acceptance_uniforms(chains: Sequence[Chain], width: int) -> Floats:
    rows = list(range(width)) * len(chains)
    keys = [chain.key for chain in chains for _ in range(width)]
    bases = [chain.base_position for chain in chains for _ in range(width)]
    cycles = [chain.cycle for chain in chains for _ in range(width)]
    drawn = _uniforms(keys, rows, bases, cycles, noise.Stream.ACCEPTANCE)
    return drawn.reshape(len(chains), width)


def _next(
    chains: Sequence[Chain],
    accepted: Ints,
    weights: Floats,
    log_probs: torch.Tensor,
    starts: Ints,
    uniforms: Floats,
) -> tuple[Ints, Floats]:
    """Draw the token behind what was kept, a part of the chains at a time."""
    size = max(1, _CHUNK // log_probs.shape[1])
    parts = [
        draw_ascending(
            leftover(
                chains[at : at + size],
                accepted[at : at + size],
                weights[at : at + size],
                log_probs,
                starts[at : at + size],
            ),
            uniforms[at : at + size],
        )
        for at in range(0, len(chains), size)
    ]
    return np.concatenate([ids for ids, _ in parts]), np.concatenate([gaps for _, gaps in parts])


def leftover(
    chains: Sequence[Chain],
    accepted: Ints,
    weights: Floats,
    log_probs: torch.Tensor,
    starts: Ints,
) -> Floats:
    """Return what the token behind the kept prefix is drawn from, [S, V], not normalised."""
    p = _probs(log_probs[torch.from_numpy(starts + accepted)])
    q = np.zeros_like(p)
    weight = np.ones(len(chains))
    for s, chain in enumerate(chains):
        if accepted[s] < len(chain):
            ids, counts = chain.proposed.listed[accepted[s]]
            q[s, ids] = counts / wire.TOTAL_COUNT
            weight[s] = weights[s, accepted[s]]
    return corrected(p, q, weight)
