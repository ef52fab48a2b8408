"""Sampling with shared Gumbel noise: where drafter and target agree, they draw equal tokens."""

from collections.abc import Sequence

import torch

from outrider import noise, ranking
from outrider.distribution import HEAD_SIZE, Distribution, total_mass

_TAIL_CHUNK = 2**21  # entries of tail rows worked on at a time; bounds memory


def coupled(
    log_probs: torch.Tensor,
    keys: Sequence[int],
    positions: Sequence[int],
    *,
    head_size: int = HEAD_SIZE,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw one id per row exactly from its distribution, with the noise of (key, position).

    Shapes: as ``draw``, with log_probs [R, V] float32 over all ids.
    """
    return draw(split(log_probs, head_size=head_size), keys, positions)


def split(log_probs: torch.Tensor, *, head_size: int = HEAD_SIZE) -> Distribution:
    """Return the head and the tail of rows of log probabilities [R, V]."""
    vocab_size = log_probs.shape[1]
    missing = -vocab_size % ranking.WIDTH_MULTIPLE
    padded = torch.nn.functional.pad(log_probs, (0, missing), value=-torch.inf)
    head_log_probs, head_ids = ranking.top(padded, head_size)
    has_tail = (log_probs > -torch.inf).sum(-1) > head_log_probs.shape[1]
    full_rows = tuple(has_tail.nonzero()[:, 0].tolist())
    return Distribution(head_ids, head_log_probs, full_rows, log_probs[has_tail], vocab_size)


def draw(
    distribution: Distribution, keys: Sequence[int], positions: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw one id per row exactly from its distribution, with the noise of (key, position).

    One draw decides between head and tail by the tail's mass; inside either the largest noised log
    probability wins. The noise of the tail is worked out only for the few rows that end there.
    Shapes: keys [R] any 64-bit values; positions [R] absolute positions of the drawn tokens; ids
    [R] int64, margins [R] float32, the winner's lead in noised log probability over the second (inf
    with a single id).
    """
    device = distribution.head_ids.device
    key = noise.key_tensor(keys, device=device)
    position = torch.tensor(positions, dtype=torch.int64, device=device)
    width = max(1, int((distribution.head_log_probs > -torch.inf).sum(-1).max()))
    head_ids = distribution.head_ids[:, :width]
    scores = _scores(distribution.head_log_probs[:, :width], key, head_ids, position)
    ids, margins = _best(scores, head_ids)
    if not distribution.full_rows:
        return ids, margins
    full_rows = torch.tensor(distribution.full_rows, device=device)
    head_mass = total_mass(distribution.head_log_probs[full_rows])
    uniform = noise.uniform(key[full_rows], 0, position[full_rows], 0, noise.Stream.TAIL)
    chosen = (uniform < 1.0 - head_mass).nonzero()[:, 0]
    for part in torch.split(chosen, max(1, _TAIL_CHUNK // distribution.vocab_size)):
        at = full_rows[part]
        tail = distribution.full_log_probs[part].scatter(
            1, distribution.head_ids[at], -torch.inf
        )  # [T, V]
        tail_ids = torch.arange(distribution.vocab_size, device=device)
        scores = _scores(tail, key[at], tail_ids, position[at])
        tail_best, tail_margins = _best(scores, tail_ids.expand_as(tail))
        # A mass that is only rounding has no ids behind it.
        is_real = scores.amax(-1) > -torch.inf
        ids[at] = torch.where(is_real, tail_best, ids[at])
        margins[at] = torch.where(is_real, tail_margins, margins[at])
    return ids, margins


def _scores(
    log_probs: torch.Tensor, key: torch.Tensor, ids: torch.Tensor, position: torch.Tensor
) -> torch.Tensor:
    """Return noised log probabilities [R, N] float64."""
    gumbel = noise.gumbel(key[:, None], ids, position[:, None], 0, noise.Stream.TOKEN)
    return gumbel.add_(log_probs)


def _best(scores: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return per row the id of the largest score, lowest among equals, and its lead."""
    best = scores.amax(-1, keepdim=True)
    winner = ids.masked_fill(scores < best, torch.iinfo(torch.int64).max).amin(-1)
    second = scores.masked_fill(ids == winner[:, None], -torch.inf).amax(-1)
    margins = (best[:, 0] - second).masked_fill(second == -torch.inf, torch.inf)
    return winner, margins.to(torch.float32)
