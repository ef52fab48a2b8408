"""What a drafter with logits proposes: a token, its lead, and what it was drawn from."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from outrider import coupling, distribution, wire
from outrider.distribution import HEAD_SIZE, Distribution, RowSampling
from outrider.sampling import Mode

NUM_LISTED = 32


@dataclass(frozen=True, slots=True)
class Proposal:
    """One draft token; ``distribution`` is packed as by ``wire.pack``, None if not asked for."""

    token_id: int
    logit_margin: float
    """The largest logit minus the second largest."""
    distribution: tuple[bytes, bytes] | None


def propose(
    logits: torch.Tensor,
    rows: Sequence[RowSampling],
    *,
    mode: Mode,
    keys: Sequence[int],
    positions: Sequence[int],
    vocab_size: int,
    head_size: int = HEAD_SIZE,
    num_listed: int = NUM_LISTED,
) -> list[Proposal]:
    """Draw one draft token per row by the target's own rule.

    The distribution lists the ``num_listed`` most likely ids, the drawn one always among them; 0
    asks for none. In COUPLED it is the processed one; in GREEDY, where that would be a point, it is
    the logits' own at temperature 1, which says more about how sure the drafter was.
    Shapes: logits [R, L] float32; rows, keys, positions [R].
    Raises: ValueError for RATIO.
    """
    if mode is Mode.RATIO:
        raise ValueError("RATIO is not built")
    greedy_ids, margins = distribution.greedy(logits, rows, vocab_size=vocab_size)
    processed: Distribution | None = None
    if mode is Mode.COUPLED:
        processed = distribution.process(logits, rows, vocab_size=vocab_size, head_size=head_size)
        ids, _ = coupling.draw(processed, keys, positions)
    else:
        ids = greedy_ids
        if num_listed:
            plain = [RowSampling(banned_ids=row.banned_ids) for row in rows]
            processed = distribution.process(
                logits, plain, vocab_size=vocab_size, head_size=num_listed
            )
    token_ids = ids.tolist()
    if num_listed and processed is not None:
        listed = _listed(processed, token_ids, num_listed)
    else:
        listed = [None] * len(token_ids)
    return [
        Proposal(token_id, margin, packed)
        for token_id, margin, packed in zip(token_ids, margins.tolist(), listed, strict=True)
    ]


def _listed(
    processed: Distribution, token_ids: Sequence[int], num_listed: int
) -> list[tuple[bytes, bytes] | None]:
    ids = processed.head_ids[:, :num_listed].tolist()
    log_probs = processed.head_log_probs[:, :num_listed].tolist()
    listed: list[tuple[bytes, bytes] | None] = []
    for row, drawn in enumerate(token_ids):
        pairs = [(i, p) for i, p in zip(ids[row], log_probs[row], strict=True) if p > -math.inf]
        if drawn not in dict(pairs):
            # Drawn from further down: it takes the least likely place.
            pairs[num_listed - 1 :] = [(drawn, _log_prob(processed, row, drawn))]
        names = [i for i, _ in pairs]
        counts = wire.quantise(names, [math.exp(p) for _, p in pairs])
        listed.append(wire.pack(names, counts.tolist()))
    return listed


def _log_prob(processed: Distribution, row: int, token_id: int) -> float:
    if row in processed.full_rows:
        return float(processed.full_log_probs[processed.full_rows.index(row), token_id])
    return float(processed.head_log_probs[row, processed.head_ids[row] == token_id])
