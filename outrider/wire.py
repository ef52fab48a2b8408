"""Draft distributions as exact rational numbers, and what makes a draft invalid."""

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from outrider import tree
from outrider.v1 import common_pb2 as pb

TOTAL_COUNT = 65536
MAX_IDS = 4096


def quantise(ids: Sequence[int], probs: Sequence[float]) -> npt.NDArray[np.int64]:
    """Return counts >= 1 that sum to 65536, in proportion to ``probs`` by largest remainder.

    Equal remainders favour the earlier id. ``probs`` need not sum to 1: truncation is part of this
    step, since a token must be drawn from exactly the counts that travel.
    Raises: ValueError for no or too many ids, repeated ids, or weights that are not finite,
    negative or all 0.
    """
    weights = np.asarray(probs, dtype=np.float64)
    if not 1 <= len(ids) <= MAX_IDS or weights.shape != (len(ids),):
        raise ValueError(f"{len(ids)} ids and weights {weights.shape}; 1 to {MAX_IDS} of each")
    if len(set(ids)) != len(ids):
        raise ValueError("ids repeat")
    counts: npt.NDArray[np.int64] = quantise_rows(weights[None], np.array([len(ids)]))[0]
    return counts


def quantise_rows(
    weights: npt.NDArray[np.float64], lengths: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64]:
    """Quantise many rows at once; each comes out as alone.

    Shapes: weights [R, N], of which the first ``lengths`` of a row count; counts [R, N], 0 behind
    them.
    Raises: ValueError for weights that are not finite, negative or all 0.
    """
    is_real = np.arange(weights.shape[1]) < lengths[:, None]
    weights = np.where(is_real, weights, 0.0)
    # One after the other, so that what stands behind a row never changes its sum.
    totals = np.cumsum(weights, axis=1)[:, -1:]
    if not (np.isfinite(totals).all() and (totals > 0).all() and (weights >= 0).all()):
        raise ValueError("weights must be finite, not negative and not all 0")
    ideal = weights / totals * TOTAL_COUNT
    counts: npt.NDArray[np.int64] = np.where(is_real, np.maximum(np.floor(ideal), 1), 0).astype(
        np.int64
    )
    while (missing := TOTAL_COUNT - counts.sum(1, keepdims=True)).any():
        # Raised minima can overshoot the sum; then the counts furthest above their share give one
        # back.
        gives = (missing < 0) & (counts > 1)
        takes = (missing > 0) & is_real
        distance = np.where(missing < 0, ideal - counts, counts - ideal)
        order = np.argsort(np.where(gives | takes, distance, np.inf), axis=1, kind="stable")
        rank = np.argsort(order, axis=1, kind="stable")
        counts += np.where((gives | takes) & (rank < abs(missing)), np.sign(missing), 0)
    return counts


def pack(
    ids: Sequence[int] | npt.NDArray[np.int64], counts: Sequence[int] | npt.NDArray[np.int64]
) -> tuple[bytes, bytes]:
    """Return the bytes of a TokenDistribution's ``ids`` and ``counts``."""
    assert len(ids) == len(counts)
    packed_ids = np.asarray(ids, dtype="<u4").tobytes()
    return packed_ids, (np.asarray(counts, dtype=np.int64) - 1).astype("<u2").tobytes()


def unpack(
    packed_ids: bytes, packed_counts: bytes
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return ids and counts of a TokenDistribution.

    Raises: ValueError with the reason if they are not a distribution.
    """
    if len(packed_ids) % 4 or len(packed_counts) % 2:
        raise ValueError(f"{len(packed_ids)} bytes of ids and {len(packed_counts)} of counts")
    ids = np.frombuffer(packed_ids, dtype="<u4").astype(np.int64)
    counts = np.frombuffer(packed_counts, dtype="<u2").astype(np.int64) + 1
    if len(ids) != len(counts) or not 1 <= len(ids) <= MAX_IDS:
        raise ValueError(f"{len(ids)} ids and {len(counts)} counts; 1 to {MAX_IDS} of each")
    if len(np.unique(ids)) != len(ids):
        raise ValueError("ids repeat")
    if counts.sum() != TOTAL_COUNT:
        raise ValueError(f"counts sum to {counts.sum()}, not {TOTAL_COUNT}")
    return ids, counts


def validate_draft(
    draft: pb.Draft, *, vocab_size: int, max_draft_tokens: int, max_depth: int
) -> str | None:
    """Return why a draft is invalid, or None; an invalid draft is treated as no draft.

    ``max_depth``: positions that are left in the context.
    """
    num_nodes = len(draft.token_ids)
    if num_nodes > max_draft_tokens:
        return f"{num_nodes} draft tokens, at most {max_draft_tokens}"
    for node, token_id in enumerate(draft.token_ids):
        if token_id >= vocab_size:
            return f"token_ids[{node}]: {token_id} is not below the vocabulary size {vocab_size}"
    for name in ("parents", "distributions", "logit_margins", "probe"):
        if len(getattr(draft, name)) not in (0, num_nodes):
            return f"{name}: {len(getattr(draft, name))} for {num_nodes} draft tokens"
    for node, parent in enumerate(draft.parents):
        if not -1 <= parent < node:
            return f"parents[{node}]: {parent} is not an earlier node or -1"
    depth = max(tree.depths(draft.parents), default=num_nodes)
    if depth > max_depth:
        return f"{depth} draft tokens in a row, at most {max(max_depth, 0)} fit the context"
    if any(draft.probe) and draft.distributions:
        return "probe: a probe is drawn from nothing, but distributions are given"
    if any(math.isnan(margin) for margin in draft.logit_margins):
        return "logit_margins: not a number"
    for node, drawn in enumerate(draft.token_ids if draft.distributions else ()):
        message = draft.distributions[node]
        try:
            ids, _ = unpack(message.ids, message.counts)
        except ValueError as error:
            return f"distributions[{node}]: {error}"
        if ids.max() >= vocab_size:
            return (
                f"distributions[{node}]: {ids.max()} is not below the vocabulary size {vocab_size}"
            )
        if drawn not in ids:
            return f"distributions[{node}]: {drawn} was drawn but is not listed"
    return None
