"""Attention of a packed pass, by the native kernel or by torch."""

import ctypes
from dataclasses import dataclass

import torch

from outrider.engine.plan import StepPlan
from outrider.engine.pool import LayerSlab, lengths
from outrider.kernels import TYPE_CODES, Attention, Kernels, Slab


@dataclass(frozen=True, slots=True)
class Shape:
    """What an attention module asks for. ``window`` 0: none; ``softcap`` 0: none."""

    scale: float
    window: int = 0
    softcap: float = 0.0
    sinks: torch.Tensor | None = None


def attend_torch(
    query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, past: int, *, shape: Shape
) -> torch.Tensor:
    """Causal attention of one sequence with float32 softmax.

    Shapes: query [q_heads, T, dk] at positions past.. ; keys [heads, L, dk], values [heads, L, dv];
    returns [T, q_heads, dv].
    """
    heads, length = keys.shape[0], keys.shape[1]
    q_heads, rows = query.shape[0], query.shape[1]
    share = q_heads // heads
    grouped = query.reshape(heads, share * rows, query.shape[2])
    scores = (grouped @ keys.transpose(1, 2)).float() * shape.scale  # [heads, share * T, L]
    if shape.softcap:
        scores = torch.tanh(scores / shape.softcap) * shape.softcap
    q_positions = torch.arange(past, past + rows, device=query.device)[:, None]
    k_positions = torch.arange(length, device=query.device)[None]
    visible = k_positions <= q_positions
    if shape.window:
        visible &= k_positions > q_positions - shape.window
    scores = scores.masked_fill(~visible.repeat(share, 1), float("-inf"))
    if shape.sinks is not None:
        sinks = shape.sinks.float().repeat_interleave(rows).view(heads, share * rows, 1)
        scores = torch.cat((scores, sinks), dim=-1)
    probs = torch.softmax(scores, dim=-1)[..., :length].to(values.dtype)
    return (probs @ values).view(q_heads, rows, -1).transpose(0, 1)


def attend_slab(
    query: torch.Tensor, slab: LayerSlab, plan: StepPlan, *, shape: Shape
) -> torch.Tensor:
    """Attention straight from the pool on torch.

    Shapes: query [1, q_heads, T, dk]; returns [1, T, q_heads, dv].
    """
    parts = []
    for n, end in enumerate(lengths(plan)):
        a, b = int(plan.starts[n]), int(plan.starts[n + 1])
        keys, values = slab.read(plan.block_tables[n], int(end))
        parts.append(attend_torch(query[0, :, a:b], keys, values, int(plan.past[n]), shape=shape))
    return torch.cat(parts)[None]


def attend_gathered(
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    plan: StepPlan,
    *,
    shape: Shape,
) -> torch.Tensor:
    """Attention over all sequences' keys side by side, as the model may have transformed them.

    Shapes: query [1, q_heads, T, dk], keys [1, heads, sum of lengths, dk], values likewise with dv.
    Raises: NotImplementedError if the keys are not those of all sequences.
    """
    ends = lengths(plan)
    if keys.shape[2] != int(ends.sum()):
        raise NotImplementedError("attention did not get the keys that the cache returned")
    parts, at = [], 0
    for n, end in enumerate(ends.tolist()):
        a, b = int(plan.starts[n]), int(plan.starts[n + 1])
        k, v = keys[0, :, at : at + end], values[0, :, at : at + end]
        parts.append(attend_torch(query[0, :, a:b], k, v, int(plan.past[n]), shape=shape))
        at += end
    return torch.cat(parts)[None]


class NativeAttention:
    """The native kernel with its arguments kept between calls."""

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._arguments = Attention()
        self._address = ctypes.addressof(self._arguments)
        self._slabs: dict[int, Slab] = {}
        self._plan: StepPlan | None = None

    def forget_slabs(self) -> None:
        self._slabs.clear()

    def write(
        self, slab: LayerSlab, plan: StepPlan, keys: torch.Tensor, values: torch.Tensor
    ) -> None:
        """Shapes: keys [1, heads, T, dk], values [1, heads, T, dv]."""
        if keys.stride(3) != 1:
            keys = keys.contiguous()
        if values.stride(3) != 1:
            values = values.contiguous()
        self._kernels.kv_write(
            *(self._slab(slab), keys.data_ptr(), keys.stride(2), keys.stride(1)),
            *(values.data_ptr(), values.stride(2), values.stride(1)),
            *(plan.slots.data_ptr(), 0 if plan.kv_rows is None else plan.kv_rows.data_ptr()),
            len(plan.slots),
        )

    def __call__(
        self, query: torch.Tensor, slab: LayerSlab, plan: StepPlan, *, shape: Shape
    ) -> torch.Tensor:
        """Shapes: query [1, q_heads, T, dk]; returns [1, T, q_heads, dv]."""
        if query.stride(3) != 1:
            query = query.contiguous()
        q_heads, rows = query.shape[1], query.shape[2]
        out = torch.empty((1, rows, q_heads, slab.values.shape[3]), dtype=query.dtype)
        c = self._arguments
        if plan is not self._plan:
            c.starts, c.past = plan.starts.ctypes.data, plan.past.ctypes.data
            c.tables, c.table_stride = plan.tables.ctypes.data, plan.tables.shape[1]
            c.num_sequences = plan.num_sequences
            self._plan = plan
        c.q, c.q_row, c.q_head = query.data_ptr(), query.stride(2), query.stride(1)
        c.out, c.q_heads = out.data_ptr(), q_heads
        c.scale, c.softcap, c.window = shape.scale, shape.softcap, shape.window
        sinks = None if shape.sinks is None else shape.sinks.detach().float().contiguous()
        c.sinks = 0 if sinks is None else sinks.data_ptr()
        self._kernels.attention(self._slab(slab), self._address, self._kernels.threads)
        return out

    def _slab(self, slab: LayerSlab) -> int:
        found = self._slabs.get(id(slab.keys))
        if found is None or found.k != slab.keys.data_ptr():
            found = self._slabs[id(slab.keys)] = slab_of(slab)
        return ctypes.addressof(found)


def slab_of(slab: LayerSlab) -> Slab:
    """Return a layer's slab as the kernels take it."""
    _, heads, dk, block_size = slab.keys.shape
    return Slab(
        k=slab.keys.data_ptr(),
        v=slab.values.data_ptr(),
        heads=heads,
        dk=dk,
        dv=slab.values.shape[3],
        block_size=block_size,
        type=TYPE_CODES[slab.keys.dtype],
    )
