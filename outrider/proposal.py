"""What a drafter with logits proposes: a token, its lead, and what it was drawn from."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from outrider import coupling, distribution, noise, proposed, wire
from outrider.distribution import HEAD_SIZE, Bias, Distribution, RowSampling
from outrider.noise import Stream
from outrider.rules import Floats, Ints
from outrider.sampling import Mode

NUM_LISTED = 32
NUM_NOISED = 128
"""Ids of a row among which the shared noise decides what a tree holds."""
SHARPNESS = 0.7
"""How much a lead in noised log probability says, in COUPLED: less than it would if drafter and
target had the same probabilities. At temperature 0.8 trees of 16 and 32 nodes of an EAGLE-3 head
yield 1.63 and 1.68 tokens with 1.4; 1.69, 1.79 with 1; 1.74, 1.87 with 0.7; 1.76, 1.86 with 0.5."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a draft token stands, which is what keys its noise."""

    key: int
    """The seed in COUPLED, the proposal key in RATIO."""
    position: int
    """Absolute position of the token."""
    node: int = 0
    """RATIO: index of the token in its draft."""
    cycle: int = 0
    """RATIO: the one cycle that may use the draft."""
    is_guess: bool = False
    """The token is not proposed: it guesses what the target will add to a pending draft."""


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
    places: Sequence[Place],
    *,
    mode: Mode,
    vocab_size: int,
    head_size: int = HEAD_SIZE,
    num_listed: int = NUM_LISTED,
    draft_ids: torch.Tensor | None = None,
) -> list[Proposal]:
    """Draw one draft token per row.

    In GREEDY and COUPLED the target's own rule draws it, and the distribution lists the
    ``num_listed`` most likely ids, the drawn one always among them; 0 asks for none. In COUPLED it
    is the processed one; in GREEDY, where that would be a point, it is the logits' own at
    temperature 1, which says more about how sure the drafter was.
    In RATIO the processed distribution is cut to its ``num_listed`` most likely ids, turned into
    counts, and then drawn from exactly those; a guess is its most likely id.
    Shapes: logits [R, L] float32; rows, places [R]; draft_ids [L] int64, ascending: the target ids
    that the logits stand for, None for all in order. Of such a draft vocabulary COUPLED draws from
    the ``head_size`` most likely ids alone.
    Raises: ValueError for RATIO without ids to list.
    """
    own = None if draft_ids is None else _DraftIds(draft_ids)
    if own is not None:
        rows = [own.row(row) for row in rows]
        vocab_size = own.num_below(vocab_size)
    greedy_ids, margins = distribution.greedy(logits, rows, vocab_size=vocab_size)
    if own is not None:
        greedy_ids = own.of(greedy_ids)
    leads = margins.tolist()

    def process(rows: Sequence[RowSampling], head_size: int) -> Distribution:
        found = distribution.process(logits, rows, vocab_size=vocab_size, head_size=head_size)
        return found if own is None else own.spread(found)

    if mode is Mode.GREEDY:
        plain = [row.unscaled() for row in rows]
        processed = process(plain, num_listed) if num_listed else None
        return _chosen(greedy_ids.tolist(), leads, processed, num_listed)
    if mode is Mode.RATIO:
        if num_listed < 1:
            raise ValueError("RATIO draws from listed ids; num_listed must be at least 1")
        processed = process(rows, num_listed)
        return _drawn(processed, places, greedy_ids.tolist(), leads, num_listed)
    processed = process(rows, head_size)
    keys, positions = [place.key for place in places], [place.position for place in places]
    ids, _ = coupling.draw(processed, keys, positions)
    return _chosen(ids.tolist(), leads, processed, num_listed)


@dataclass(frozen=True, slots=True)
class Likely:
    """What the target may say at each of R places, likeliest first.

    Shapes: ids [R, N] int64; shares [R, N] float64, 0 behind a support.
    """

    ids: Ints
    shares: Floats

    def __getitem__(self, rows: slice) -> "Likely":
        """Return some of the places."""
        return Likely(self.ids[rows], self.shares[rows])

    def candidates(self) -> list[list[tuple[int, float]]]:
        """Return the ids of every place that can be said at all, with their shares."""
        return [
            [(i, share) for i, share in zip(ids, shares, strict=True) if share > 0]
            for ids, shares in zip(self.ids.tolist(), self.shares.tolist(), strict=True)
        ]


def likely(
    logits: torch.Tensor,
    rows: Sequence[RowSampling],
    places: Sequence[Place],
    *,
    mode: Mode,
    vocab_size: int,
    num_ids: int = NUM_LISTED,
    draft_ids: torch.Tensor | None = None,
) -> Likely:
    """Return the ids that a tree may hold at each place, and how likely the target says each.

    In GREEDY by the logits' own probabilities, in RATIO by the processed ones. In COUPLED the same
    noise as the target's makes some ids likelier than their probability says.
    Shapes and ``draft_ids`` as for ``propose``.
    """
    own = None if draft_ids is None else _DraftIds(draft_ids)
    if own is not None:
        rows = [own.row(row) for row in rows]
        vocab_size = own.num_below(vocab_size)
    if mode is Mode.GREEDY:
        rows = [row.unscaled() for row in rows]
    head_size = max(num_ids, NUM_NOISED) if mode is Mode.COUPLED else num_ids
    found = distribution.process(logits, rows, vocab_size=vocab_size, head_size=head_size)
    ids = (found if own is None else own.spread(found)).head_ids
    if mode is not Mode.COUPLED:
        return Likely(ids.cpu().numpy(), found.head_log_probs.double().exp().cpu().numpy())
    keys = noise.key_tensor([place.key for place in places], device=ids.device)
    positions = torch.tensor([place.position for place in places], device=ids.device)
    noised = noise.gumbel(keys[:, None], ids, positions[:, None], 0, Stream.TOKEN)
    scores = SHARPNESS * (found.head_log_probs.double() + noised)
    shares, order = scores.softmax(-1).sort(dim=-1, descending=True, stable=True)
    ids = ids.gather(1, order)
    return Likely(ids[:, :num_ids].cpu().numpy(), shares[:, :num_ids].cpu().numpy())


class _DraftIds:
    """The target ids of a draft vocabulary: [D] int64, ascending."""

    def __init__(self, ids: torch.Tensor) -> None:
        self._ids = ids

    def num_below(self, vocab_size: int) -> int:
        return int(torch.searchsorted(self._ids, vocab_size))

    def of(self, rows: torch.Tensor) -> torch.Tensor:
        """Return target ids; rows of padding, which have no probability, get the last id."""
        return self._ids[rows.clamp(max=len(self._ids) - 1)]

    def row(self, row: RowSampling) -> RowSampling:
        """Return the row over the draft vocabulary.

        What is said of other ids falls away; where that leaves no id, none is masked.
        """
        if not row.edits:
            return row
        ids: Ints = self._ids.cpu().numpy()
        left = np.ones(len(ids), dtype=np.bool_)
        if row.allowed is not None:
            everything = np.unpackbits(row.allowed, bitorder="little")
            left = (ids < len(everything)) & (everything[ids.clip(max=len(everything) - 1)] == 1)
        left &= ~np.isin(ids, row.banned_ids)
        allowed = None if left.all() or not left.any() else np.packbits(left, bitorder="little")
        bias, penalties = row.bias, row.penalties
        if bias is not None:
            inside, places = _places(ids, bias.ids)
            bias = Bias(places, bias.values[inside])
        if penalties is not None:
            inside, places = _places(ids, penalties.ids)
            penalties = replace(penalties, ids=places, counts=penalties.counts[inside])
        return replace(row, banned_ids=(), allowed=allowed, bias=bias, penalties=penalties)

    def spread(self, processed: Distribution) -> Distribution:
        """Return the distribution over target ids, without a tail."""
        nothing = processed.full_log_probs[:0]
        ids = self.of(processed.head_ids)
        return replace(processed, head_ids=ids, full_rows=(), full_log_probs=nothing)


def _places(ids: Ints, wanted: Ints) -> tuple[npt.NDArray[np.bool_], Ints]:
    """Return which ids are among ascending ones, and the places of those."""
    places = np.searchsorted(ids, wanted).clip(max=len(ids) - 1)
    inside = ids[places] == wanted
    return inside, places[inside]


def _chosen(
    token_ids: Sequence[int],
    margins: Sequence[float],
    processed: Distribution | None,
    num_listed: int,
) -> list[Proposal]:
    """Return proposals of ids that were chosen already, with what is listed beside them."""
    listed: Sequence[tuple[bytes, bytes] | None] = [None] * len(token_ids)
    if num_listed and processed is not None:
        ids, log_probs = _most_likely(processed, num_listed)
        for row, drawn in enumerate(token_ids):
            place = log_probs[row] > -np.inf
            if drawn not in ids[row, place]:
                # Drawn from further down: it takes the least likely place.
                at = min(int(place.sum()), ids.shape[1] - 1)
                ids[row, at], log_probs[row, at] = drawn, _log_prob(processed, row, drawn)
        counted = _counts(ids, log_probs)
        listed = [wire.pack(*each) for each in counted]
    return [Proposal(*each) for each in zip(token_ids, margins, listed, strict=True)]


def _drawn(
    processed: Distribution,
    places: Sequence[Place],
    greedy_ids: Sequence[int],
    margins: Sequence[float],
    num_listed: int,
) -> list[Proposal]:
    """Return proposals drawn from the counts that travel with them."""
    counted = _counts(*_most_likely(processed, num_listed))
    uniforms = proposed.proposal_uniforms(
        [place.key for place in places],
        [place.node for place in places],
        [place.position for place in places],
        [place.cycle for place in places],
    )
    indices = proposed.draw_counts([counts for _, counts in counted], uniforms)
    proposals = []
    for row, (place, (ids, counts)) in enumerate(zip(places, counted, strict=True)):
        token_id = greedy_ids[row] if place.is_guess else int(ids[indices[row]])
        proposals.append(Proposal(token_id, margins[row], wire.pack(ids, counts)))
    return proposals


def _most_likely(processed: Distribution, num_listed: int) -> tuple[Ints, Floats]:
    """Return the most likely ids and their log probabilities, [R, N]; -inf behind a support."""
    ids: Ints = processed.head_ids[:, :num_listed].cpu().numpy().copy()
    log_probs: Floats = processed.head_log_probs[:, :num_listed].double().cpu().numpy()
    return ids, log_probs


def _counts(ids: Ints, log_probs: Floats) -> list[tuple[Ints, Ints]]:
    """Return the listed ids of every row and their counts."""
    lengths = (log_probs > -np.inf).sum(1)
    counts = wire.quantise_rows(np.exp(log_probs), lengths)
    return [(ids[row, :n], counts[row, :n]) for row, n in enumerate(lengths.tolist())]


def _log_prob(processed: Distribution, row: int, token_id: int) -> float:
    if row in processed.full_rows:
        return float(processed.full_log_probs[processed.full_rows.index(row), token_id])
    return float(processed.head_log_probs[row, processed.head_ids[row] == token_id])
