"""An EAGLE-3 head at work: pairs and tree nodes of many sequences in one pass of its layer."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.nn import functional as F

from drafter_svc.heads.work import Growing, HeadState, Reading, Work, num_rows
from outrider.heads.eagle import EagleConfig, EagleHead

FIRST_SLOTS = 256


@dataclass(slots=True)
class EagleState:
    """Keys and values of one sequence's pairs, those of the draft nodes behind them.

    Shapes: keys, values [slots, kv heads, D]; outs [nodes, H], the layer's output at every node;
        last_out [H], that at the last pair.
    """

    config: EagleConfig
    dtype: torch.dtype
    device: torch.device
    num_pairs: int = 0
    root_logits: torch.Tensor | None = None
    keys: torch.Tensor = field(init=False)
    values: torch.Tensor = field(init=False)
    last_out: torch.Tensor | None = None
    outs: list[torch.Tensor] = field(default_factory=list)
    ancestors: list[tuple[int, ...]] = field(default_factory=list)
    """Of every node: the nodes above it and itself."""

    def __post_init__(self) -> None:
        self.keys, self.values = self._slots(0), self._slots(0)

    def _slots(self, count: int) -> torch.Tensor:
        shape = (count, self.config.num_key_value_heads, self.config.head_dim)
        return torch.empty(shape, dtype=self.dtype, device=self.device)

    @property
    def num_slots(self) -> int:
        """Slots in use."""
        return self.num_pairs + len(self.outs)

    def truncate(self, num_pairs: int) -> None:
        """Forget the pairs from there on."""
        self.drop_nodes()
        if num_pairs < self.num_pairs:
            self.num_pairs, self.last_out, self.root_logits = num_pairs, None, None

    def adopt(self, other: HeadState, num_pairs: int) -> None:
        """Begin with the first pairs that another sequence has read."""
        assert isinstance(other, EagleState)
        self.truncate(0)
        self.keys = other.keys[:num_pairs].clone()
        self.values = other.values[:num_pairs].clone()
        self.num_pairs = num_pairs

    def drop_nodes(self) -> None:
        """Forget all draft nodes."""
        self.outs.clear()
        self.ancestors.clear()

    def put(self, keys: torch.Tensor, values: torch.Tensor) -> None:
        """Write the next slots."""
        begin, end = self.num_slots, self.num_slots + len(keys)
        if end > len(self.keys):
            more = max(FIRST_SLOTS, 2 * end) - len(self.keys)
            self.keys = torch.cat([self.keys, self._slots(more)])
            self.values = torch.cat([self.values, self._slots(more)])
        self.keys[begin:end], self.values[begin:end] = keys, values

    def sees(self, work: Work) -> torch.Tensor:
        """Return which slots each new row sees, itself included; [n, slots] bool."""
        count = len(work.token_ids)
        end = self.num_slots + count
        if isinstance(work, Reading):
            order = torch.arange(end, device=self.device)
            return order <= order[self.num_pairs :, None]
        nodes = [
            (row, self.num_pairs + node)
            for row, parent in enumerate(work.parents)
            for node in (self.ancestors[parent] if parent >= 0 else ())
        ]
        nodes += [(row, self.num_slots + row) for row in range(count)]
        mask = torch.zeros(count, end, dtype=torch.bool, device=self.device)
        mask[:, : self.num_pairs] = True
        mask.view(-1)[torch.tensor([row * end + slot for row, slot in nodes])] = True
        return mask


class EagleAtWork:
    """The head with embeddings and logits, in one element type on one device."""

    def __init__(self, head: EagleHead, embeddings: nn.Embedding, logits: nn.Linear) -> None:
        self._head, self._embeddings, self._logits = head, embeddings, logits
        weight = head.fc.weight
        self._dtype, self._device = weight.dtype, weight.device
        self.reach: int | None = None

    def open(self) -> EagleState:
        """Return the state of a new sequence."""
        return EagleState(self._head.config, self._dtype, self._device)

    def forward(self, works: Sequence[Work]) -> torch.Tensor:
        """Do all works: the linears over all rows at once, attention sequence by sequence."""
        head = self._head
        features = [self._features(work) for work in works]
        ids = [token_id for work in works for token_id in work.token_ids]
        positions = [position for work in works for position in _positions(work)]
        embedded = self._embeddings(torch.tensor(ids, device=self._device))
        places = torch.tensor([positions], device=self._device)
        pair = head.begin(embedded[None], torch.cat(features)[None], places)
        attended = torch.empty_like(pair.query[0])
        begin = 0
        for work in works:
            rows = slice(begin, begin + len(work.token_ids))
            state: EagleState = work.state  # type: ignore[assignment]
            state.put(pair.key[0, rows], pair.value[0, rows])
            attended[rows] = _attend(pair.query[0, rows], state, work)
            begin = rows.stop
        out = head.end(pair.residual[0], attended)  # [R, H]
        logits: torch.Tensor = self._logits(head.norm(self._keep(works, out)))
        return logits.float()

    def _features(self, work: Work) -> torch.Tensor:
        """Return what stands for the hidden states in each row; [n, H]."""
        head = self._head
        if isinstance(work, Reading):
            return head.combine(work.features.to(self._device, self._dtype))
        state: EagleState = work.state  # type: ignore[assignment]
        assert state.last_out is not None
        outs = [state.outs[p] if p >= 0 else state.last_out for p in work.parents]
        stacked = torch.stack(outs)
        return head.feature_of(stacked, head.norm(stacked))

    def _keep(self, works: Sequence[Work], out: torch.Tensor) -> torch.Tensor:
        """Let the states keep what they need; return the outputs whose logits are wanted."""
        wanted: list[torch.Tensor] = []
        begin = 0
        for work in works:
            rows = out[begin : begin + len(work.token_ids)]
            begin += len(rows)
            state: EagleState = work.state  # type: ignore[assignment]
            if isinstance(work, Reading):
                state.num_pairs += len(rows)
                state.last_out = rows[-1].clone()
            else:
                _add_nodes(state, work, rows)
            wanted.append(rows[len(rows) - num_rows(work) :])
        return torch.cat(wanted)


def _add_nodes(state: EagleState, work: Growing, rows: torch.Tensor) -> None:
    for parent, row in zip(work.parents, rows, strict=True):
        above = state.ancestors[parent] if parent >= 0 else ()
        state.ancestors.append((*above, len(state.outs)))
        state.outs.append(row)


def _positions(work: Work) -> list[int]:
    state: EagleState = work.state  # type: ignore[assignment]
    if isinstance(work, Reading):
        return list(range(state.num_pairs, state.num_pairs + len(work.token_ids)))
    depths = [len(state.ancestors[p]) if p >= 0 else 0 for p in work.parents]
    return [state.num_pairs + depth for depth in depths]


def _attend(query: torch.Tensor, state: EagleState, work: Work) -> torch.Tensor:
    """Shapes: query [n, heads, D]; returns the same."""
    mask = state.sees(work)
    end = mask.shape[1]
    attended = F.scaled_dot_product_attention(
        query.transpose(0, 1)[None],
        state.keys[:end].transpose(0, 1)[None],
        state.values[:end].transpose(0, 1)[None],
        attn_mask=mask,
        enable_gqa=True,
    )
    return attended[0].transpose(0, 1)
