"""Verification in RATIO: a batch of drafts is judged by their probabilities, and continued."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from outrider import elementary, noise, rules, wire
from outrider.proposed import Proposed
from outrider.rules import Floats, Ints
from outrider.sampling import AcceptanceRule

_ONE = 2.0**52  # a probability of 1 as a fixed-point weight
_CHUNK = 2**22  # entries of full rows worked on at a time; bounds memory


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
    in_blocks, joint = rules.block_thresholds(ratios, drafts.listed_p, drafts.listed_q, lengths)
    thresholds = np.where(is_block[:, None], in_blocks, rules.rejection_thresholds(ratios))
    weights = np.where(is_block[:, None], joint, 1.0)
    rows = np.arange(thresholds.shape[1])
    uniforms = _acceptance_uniforms(chains, len(rows))
    accepted = rules.num_accepted(is_block, uniforms < thresholds, lengths)

    keys, bases = [chain.key for chain in chains], [chain.base_position for chain in chains]
    cycles = [chain.cycle for chain in chains]
    final_uniforms = noise.uniforms(keys, accepted, bases, cycles, noise.Stream.RECOVERY)
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
    drawn = noise.uniforms(keys, rows, bases, cycles, noise.Stream.ACCEPTANCE)
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
    return rules.corrected(p, q, weight)


def draw_rows(
    log_probs: torch.Tensor,
    keys: Sequence[int],
    rows: Sequence[int],
    base_positions: Sequence[int],
    cycles: Sequence[int],
) -> tuple[Ints, Floats]:
    """Draw from the target itself in every row, with the noise that draws what follows a draft.

    Shapes: log_probs [R, V] float32; the sequences [R], ``rows`` counting within each draft; ids
    [R], and how near each draw was to the next id [R].
    """
    uniforms = noise.uniforms(keys, rows, base_positions, cycles, noise.Stream.RECOVERY)
    size = max(1, _CHUNK // log_probs.shape[1])
    parts = [
        draw_ascending(_probs(log_probs[at : at + size]), uniforms[at : at + size])
        for at in range(0, len(uniforms), size)
    ]
    return np.concatenate([ids for ids, _ in parts]), np.concatenate([gaps for _, gaps in parts])


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
