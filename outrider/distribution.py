"""The processed distribution of a row of logits: what sampling parameters leave of it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
import torch
from torch.nn.functional import pad

from outrider import elementary, ranking
from outrider.token_sets import Bits

HEAD_SIZE = 512  # m of the coupled rule; part of the numerics identity
_ONE = 2**52  # a probability of 1 as a fixed-point mass


Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Bias:
    """What is added to single logits. Shapes: ids [N] int64, values [N] float32."""

    ids: Ints
    values: npt.NDArray[np.float32]

    @classmethod
    def of(cls, pairs: Sequence[tuple[int, float]]) -> "Bias":
        """Return the bias of (id, value) pairs with distinct ids."""
        ids = np.array([token_id for token_id, _ in pairs], dtype=np.int64)
        return cls(ids, np.array([value for _, value in pairs], dtype=np.float32))


@dataclass(frozen=True, slots=True)
class Penalties:
    """What tokens that are there already lose, as in OpenAI's and transformers' documentation.

    Positive logits of ``ids`` are divided by ``repetition``, negative ones multiplied; then
    ``frequency`` times the count, and ``presence`` where there is a count, are subtracted.
    Shapes: ids [N] int64, distinct ones of prompt and output; counts [N] int64, in the output.
    """

    ids: Ints
    counts: Ints
    frequency: float = 0.0
    presence: float = 0.0
    repetition: float = 1.0


@dataclass(frozen=True, slots=True)
class RowSampling:
    """How one row is processed. ``top_k`` 0 or -1, ``top_p`` 1 and ``min_p`` 0 keep all.

    The order is: bias, penalties, masks, temperature, top_k, top_p, min_p.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    banned_ids: tuple[int, ...] = ()
    """Ids that are masked, such as the EOS ids before min_tokens."""
    bias: Bias | None = field(default=None, compare=False)
    penalties: Penalties | None = field(default=None, compare=False)
    allowed: Bits | None = field(default=None, compare=False)
    """The only ids that are not masked; None: all."""
    is_dead_end: bool = False
    """A constraint leaves no id: the row must not decide, and masks nothing so that it can run."""

    @property
    def edits(self) -> bool:
        """True where logits are changed before the temperature."""
        return bool(self.banned_ids) or any(
            each is not None for each in (self.bias, self.penalties, self.allowed)
        )

    def unscaled(self) -> "RowSampling":
        """Return the row at temperature 1 and without truncation: what an argmax chooses from."""
        return replace(self, temperature=1.0, top_k=0, top_p=1.0, min_p=0.0)

    def banning(self, ids: tuple[int, ...]) -> "RowSampling":
        """Return the row with more ids masked."""
        return replace(self, banned_ids=self.banned_ids + ids) if ids else self

    def penalising(self, penalties: Penalties) -> "RowSampling":
        """Return the row with penalties."""
        return replace(self, penalties=penalties)

    def allowing(self, allowed: Bits | None) -> "RowSampling":
        """Return the row with all but these ids masked; None changes nothing.

        Where no id is left, the row is a dead end.
        """
        if allowed is None:
            return self
        left = allowed if self.allowed is None else allowed & self.allowed
        return replace(self, allowed=left) if left.any() else replace(self, is_dead_end=True)


@dataclass(frozen=True, slots=True)
class Distribution:
    """Rows of log probabilities, split in a head of most likely ids and, if there is one, a tail.

    Shapes: head_ids [R, M] int64 and head_log_probs [R, M] float32, most likely first, lowest id
    first among equals, -inf outside the support; full_log_probs [len(full_rows), V] float32 over
    all ids, of the rows whose support is not all in the head.
    """

    head_ids: torch.Tensor
    head_log_probs: torch.Tensor
    full_rows: tuple[int, ...]
    full_log_probs: torch.Tensor
    vocab_size: int

    def log_probs(self) -> torch.Tensor:
        """Return the rows over all ids, [R, V] float32."""
        shape = (len(self.head_ids), self.vocab_size)
        dense = self.head_log_probs.new_full(shape, -torch.inf)
        # Ids of the padding may stand in the head, with no probability.
        ids = self.head_ids.clamp(max=self.vocab_size - 1)
        dense.scatter_reduce_(1, ids, self.head_log_probs, "amax")
        if self.full_rows:
            dense[_index(self.full_rows, dense.device)] = self.full_log_probs
        return dense


def process(
    logits: torch.Tensor,
    rows: Sequence[RowSampling],
    *,
    vocab_size: int,
    head_size: int = HEAD_SIZE,
) -> Distribution:
    """Apply temperature, top_k, top_p and min_p, in this order, to each row by itself.

    The kept sets are those of transformers' logits processors, but of equal values at an edge the
    lowest ids are kept. A row is worked out in its head alone wherever its support ends there; only
    a row with a wider support is sorted in full.
    Shapes: logits [R, L] float32, L >= vocab_size.
    Raises: ValueError for a temperature of 0, for a row without ids, if the sizes disagree.
    """
    for row in rows:
        if not row.temperature > 0:
            raise ValueError(f"temperature {row.temperature} has no distribution; use greedy()")
    scaled = _edited(logits, rows, vocab_size)  # [R, W], W >= V
    if any(row.temperature != 1 for row in rows):
        scaled = scaled / scaled.new_tensor([row.temperature for row in rows])[:, None]
    size = min(head_size, scaled.shape[1])
    head_ids = torch.empty((len(rows), size), dtype=torch.int64, device=scaled.device)
    head = scaled.new_empty((len(rows), size))  # log probabilities
    num_kept = [_num_kept(row, vocab_size, size) for row in rows]
    narrow = [i for i, kept in enumerate(num_kept) if min(kept, vocab_size) <= size]
    wide = [i for i, kept in enumerate(num_kept) if min(kept, vocab_size) > size]

    # Rows that top_k (or a small vocabulary) holds inside the head are normalised there.
    if narrow:
        at = _index(narrow, scaled.device)
        values, head_ids[at] = ranking.top(_take(scaled, narrow), size)
        head[at] = _first(values, [num_kept[i] for i in narrow]).log_softmax(-1)
    wide_log_probs = _take(scaled, wide).log_softmax(-1)
    if wide:
        at = _index(wide, scaled.device)
        head[at], head_ids[at] = ranking.top(wide_log_probs, size)

    # A cut by top_p or min_p that falls inside the head settles the row, a wide one too.
    is_cut = [row.top_p < 1 or row.min_p > 0 for row in rows]
    ends_in_head = [False] * len(rows)
    cut = [i for i in range(len(rows)) if is_cut[i] and not size < num_kept[i] < vocab_size]
    if cut:
        at = _index(cut, scaled.device)
        keep = _kept(head[at], [rows[i] for i in cut])
        head[at] = head[at].masked_fill(~keep, -torch.inf).log_softmax(-1)
        for i, last_is_kept in zip(cut, keep[:, -1].tolist(), strict=True):
            ends_in_head[i] = not last_is_kept
    full_rows = [i for i in wide if not ends_in_head[i]]
    full_log_probs = wide_log_probs
    if len(full_rows) < len(wide):
        place = {i: n for n, i in enumerate(wide)}
        full_log_probs = _take(wide_log_probs, [place[i] for i in full_rows])

    # What is truncated further down needs the full order.
    deep = [n for n, i in enumerate(full_rows) if is_cut[i] or num_kept[i] < vocab_size]
    if deep:
        indices = [full_rows[n] for n in deep]
        log_probs = _truncated(
            _take(scaled, indices), [rows[i] for i in indices], [num_kept[i] for i in indices]
        )
        full_log_probs = full_log_probs.clone()
        full_log_probs[_index(deep, scaled.device)] = log_probs
        at = _index(indices, scaled.device)
        head[at], head_ids[at] = ranking.top(log_probs, size)
    return Distribution(
        head_ids, head, tuple(full_rows), full_log_probs[:, :vocab_size], vocab_size
    )


def log_probs(
    logits: torch.Tensor, rows: Sequence[RowSampling], *, vocab_size: int
) -> torch.Tensor:
    """Return the processed log probabilities of all ids, [R, vocab_size] float32."""
    return process(logits, rows, vocab_size=vocab_size).log_probs()


def greedy(
    logits: torch.Tensor, rows: Sequence[RowSampling], *, vocab_size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each row's most likely id, lowest among equals, and its lead over the second.

    Shapes: logits [R, L] float32, L >= vocab_size; ids [R] int64, leads [R] float32 (inf with a
    single id).
    """
    return ranking.first_and_second(_edited(logits, rows, vocab_size))


def masses(log_probs: torch.Tensor) -> torch.Tensor:
    """Return probabilities as int64 multiples of 2**-52: their sums are the same in every order."""
    return elementary.exp(log_probs.to(torch.float64)).mul_(_ONE).round_().to(torch.int64)


def total_mass(log_probs: torch.Tensor) -> torch.Tensor:
    """Return each row's sum of probabilities, [R] float64."""
    return masses(log_probs).sum(-1).to(torch.float64) * (1 / _ONE)


def _edited(logits: torch.Tensor, rows: Sequence[RowSampling], vocab_size: int) -> torch.Tensor:
    """Return logits [R, W], W a multiple of 32, with bias and penalties, and -inf at padded and
    masked ids; maybe a view."""
    if logits.dtype != torch.float32 or logits.ndim != 2 or len(rows) != len(logits):
        raise ValueError(f"{len(rows)} rows for {logits.dtype} logits {tuple(logits.shape)}")
    if not 0 < vocab_size <= logits.shape[1]:
        raise ValueError(f"vocab_size {vocab_size} does not fit logits {tuple(logits.shape)}")
    edited = logits[:, :vocab_size]
    # Equal alignment of all rows keeps vectorised sums in the same order in each.
    missing = -vocab_size % ranking.WIDTH_MULTIPLE
    if missing:
        edited = pad(edited, (0, missing), value=-torch.inf)
    if any(row.edits for row in rows):
        if not missing:
            edited = edited.clone()
        _add_bias(edited, rows, vocab_size)
        _penalise(edited, rows, vocab_size)
        _mask(edited, rows, vocab_size)
    return edited


def _num_kept(row: RowSampling, vocab_size: int, size: int) -> int:
    """Return how many ids top_k leaves; no more than a mask does, where that fits the head."""
    kept = row.top_k if row.top_k > 0 else vocab_size
    if row.allowed is None:
        return kept
    num_allowed = int(np.bitwise_count(row.allowed).sum())
    return min(kept, num_allowed) if num_allowed <= size else kept


def _add_bias(logits: torch.Tensor, rows: Sequence[RowSampling], vocab_size: int) -> None:
    biased = [(i, row.bias) for i, row in enumerate(rows) if row.bias is not None]
    if biased:
        row, ids, inside = _places([(i, bias.ids) for i, bias in biased], vocab_size)
        values = np.concatenate([bias.values for _, bias in biased])[inside]
        logits[_to(row, logits), _to(ids, logits)] += _to(values, logits)


def _penalise(logits: torch.Tensor, rows: Sequence[RowSampling], vocab_size: int) -> None:
    found = [(i, row.penalties) for i, row in enumerate(rows) if row.penalties is not None]
    if not found:
        return
    row, ids, inside = _places([(i, each.ids) for i, each in found], vocab_size)
    sizes = [len(each.ids) for _, each in found]

    def spread(values: list[float]) -> torch.Tensor:
        each = np.repeat(np.array(values, dtype=np.float32), sizes)[inside]
        return _to(each, logits)

    counts = _to(np.concatenate([each.counts for _, each in found])[inside], logits)
    at = _to(row, logits), _to(ids, logits)
    values, repetition = logits[at], spread([each.repetition for _, each in found])
    values = torch.where(values > 0, values / repetition, values * repetition)
    values = values - spread([each.frequency for _, each in found]) * counts.to(torch.float32)
    presence = spread([each.presence for _, each in found])
    logits[at] = torch.where(counts > 0, values - presence, values)


def _mask(logits: torch.Tensor, rows: Sequence[RowSampling], vocab_size: int) -> None:
    limited = [(i, row.allowed) for i, row in enumerate(rows) if row.allowed is not None]
    if limited:
        bits = np.stack([allowed for _, allowed in limited])
        denied = np.unpackbits(bits, axis=1, count=vocab_size, bitorder="little") == 0  # [N, V]
        for (i, _), each in zip(limited, _to(denied, logits), strict=True):
            logits[i, :vocab_size].masked_fill_(each, -torch.inf)
    for i, row in enumerate(rows):
        if ids := [b for b in set(row.banned_ids) if b < vocab_size]:
            logits[i, ids] = -torch.inf
        if (ids or row.allowed is not None) and not bool((logits[i] > -torch.inf).any()):
            raise ValueError(f"row {i} bans every id")


def _places(
    found: Sequence[tuple[int, Ints]], vocab_size: int
) -> tuple[Ints, Ints, npt.NDArray[np.bool_]]:
    """Return row and id of every edit below ``vocab_size``, and which of all edits those are."""
    row = np.repeat([i for i, _ in found], [len(ids) for _, ids in found]).astype(np.int64)
    ids = np.concatenate([ids for _, ids in found])
    inside = ids < vocab_size
    return row[inside], ids[inside], inside


def _to(values: npt.NDArray[np.generic], like: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(values).to(like.device)


def _kept(log_probs: torch.Tensor, rows: Sequence[RowSampling]) -> torch.Tensor:
    """Return which entries of descending rows top_p and min_p keep, [R, M] bool."""
    device = log_probs.device
    # Kept: the mass before the entry is below top_p, so that the nucleus reaches it. top_p 1 keeps
    # even where rounding lets the sum reach 1 early.
    limits = [round(row.top_p * _ONE) if row.top_p < 1 else 2 * _ONE for row in rows]
    mass = masses(log_probs)
    keep = mass.cumsum(-1) - mass < torch.tensor(limits, device=device)[:, None]
    floors = [math.log(row.min_p) if row.min_p > 0 else -math.inf for row in rows]
    floor = torch.tensor(floors, dtype=torch.float64, device=device)[:, None]
    above = log_probs.to(torch.float64) - log_probs[:, :1].to(torch.float64) >= floor
    return keep & above & (log_probs > -torch.inf)


def _truncated(
    scaled: torch.Tensor, rows: Sequence[RowSampling], num_kept: Sequence[int]
) -> torch.Tensor:
    """Return the processed log probabilities [R, W] of rows that need the full order."""
    values, ids = torch.sort(scaled, dim=-1, descending=True, stable=True)
    log_probs = _first(values, num_kept).log_softmax(-1)
    keep = _kept(log_probs, rows)
    log_probs = log_probs.masked_fill(~keep, -torch.inf).log_softmax(-1)
    return torch.empty_like(log_probs).scatter_(1, ids, log_probs)


def _first(values: torch.Tensor, num_kept: Sequence[int]) -> torch.Tensor:
    """Return descending rows [R, N] with -inf from each row's ``num_kept`` on."""
    rank = torch.arange(values.shape[1], device=values.device)
    return values.masked_fill(rank >= _index(num_kept, values.device)[:, None], -torch.inf)


def _take(rows: torch.Tensor, which: Sequence[int]) -> torch.Tensor:
    return rows if len(which) == len(rows) else rows[_index(which, rows.device)]


def _index(which: Sequence[int], device: torch.device) -> torch.Tensor:
    return torch.tensor(which, dtype=torch.int64, device=device)
