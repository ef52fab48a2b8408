"""KV tensors: per layer one slab of keys and one of values, cut into blocks."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from outrider.engine.plan import StepPlan


@dataclass(frozen=True, slots=True)
class LayerSlab:
    """One layer's blocks.

    Shapes: keys [blocks, heads, dk, block_size], values [blocks, heads, block_size, dv]. Keys lie
    along the last axis, so that scores of neighbouring positions are neighbours in memory.
    """

    keys: torch.Tensor
    values: torch.Tensor

    @property
    def block_bytes(self) -> int:
        return self.keys[0].nbytes + self.values[0].nbytes

    def write(
        self,
        slots: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        *,
        rows: torch.Tensor | None = None,
    ) -> None:
        """Store new rows; ``rows`` tells which goes where, None: in order.

        Shapes: slots, rows [S]; keys [heads, T, dk], values [heads, T, dv].
        """
        if rows is not None:
            keys, values = keys[:, rows], values[:, rows]
        size = self.values.shape[2]
        blocks, offsets = slots // size, slots % size
        self.keys[blocks, :, :, offsets] = keys.transpose(0, 1)
        self.values[blocks, :, offsets] = values.transpose(0, 1)

    def read(self, table: torch.Tensor, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Copy one sequence out of its blocks.

        Shapes: table [n] int64; returns keys [heads, length, dk], values [heads, length, dv].
        """
        table = table[: -(-length // self.values.shape[2])]
        keys = self.keys[table].permute(1, 0, 3, 2).flatten(1, 2)  # [heads, n * block_size, dk]
        values = self.values[table].transpose(0, 1).flatten(1, 2)
        return keys[:, :length], values[:, :length]


class KVPool:
    """All layers' slabs; a layer is laid out when its first keys arrive."""

    def __init__(self, num_blocks: int, *, block_size: int) -> None:
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.layers: dict[int, LayerSlab] = {}

    @property
    def block_bytes(self) -> int:
        """Bytes of one block over all layers seen so far."""
        return sum(slab.block_bytes for slab in self.layers.values())

    def layer(self, index: int, keys: torch.Tensor, values: torch.Tensor) -> LayerSlab:
        """The slab of a layer, fitting the given new rows [1, heads, T, dim].

        Raises: ValueError if they differ in shape or type from the layer's first ones.
        """
        slab = self.layers.get(index)
        if slab is None:
            slab = self._allocate(keys.shape[1], keys.shape[3], values.shape[3], like=keys)
            self.layers[index] = slab
        if keys.shape[1] != slab.keys.shape[1] or keys.dtype != slab.keys.dtype:
            raise ValueError(f"layer {index} changed its KV heads or type")
        return slab

    def resized(self, num_blocks: int) -> "KVPool":
        """An empty pool with the same layers and another number of blocks."""
        pool = KVPool(num_blocks, block_size=self.block_size)
        for index, slab in self.layers.items():
            pool.layers[index] = pool._allocate(
                slab.keys.shape[1], slab.keys.shape[2], slab.values.shape[3], like=slab.keys
            )
        return pool

    def copy_block(self, source: int, targets: Sequence[int]) -> None:
        """Copy a block of every layer into others."""
        for slab in self.layers.values():
            for target in targets:
                slab.keys[target] = slab.keys[source]
                slab.values[target] = slab.values[source]

    def _allocate(self, heads: int, dk: int, dv: int, *, like: torch.Tensor) -> LayerSlab:
        make: Callable[..., torch.Tensor] = torch.zeros  # zeros: rows never written stay finite
        kind = {"dtype": like.dtype, "device": like.device}
        return LayerSlab(
            keys=make(self.num_blocks, heads, dk, self.block_size, **kind),
            values=make(self.num_blocks, heads, self.block_size, dv, **kind),
        )


def gather(slab: LayerSlab, plan: StepPlan) -> tuple[torch.Tensor, torch.Tensor]:
    """All sequences' keys and values side by side.

    Shapes: keys [1, heads, sum of lengths, dk], values [1, heads, sum of lengths, dv].
    """
    parts = [slab.read(plan.block_tables[n], int(end)) for n, end in enumerate(lengths(plan))]
    keys, values = zip(*parts, strict=True)
    return torch.cat(keys, dim=1)[None], torch.cat(values, dim=1)[None]


def lengths(plan: StepPlan) -> np.ndarray:
    """Positions that each sequence has after the pass, [n] int32."""
    return plan.past + np.diff(plan.starts)
