"""The object that a Hugging Face model takes for its KV cache, and the attention it calls."""

from enum import Enum
from typing import Any

import torch
from torch import nn

from outrider.engine.attention import (
    NativeAttention,
    Shape,
    attend_gathered,
    attend_slab,
)
from outrider.engine.plan import StepPlan
from outrider.engine.pool import KVPool, gather


class Mode(Enum):
    """INPLACE: attention reads the pool. GATHER: ``update`` returns all keys, as caches do."""

    INPLACE = "inplace"
    GATHER = "gather"


class PackedView:
    """Stands in for ``transformers.Cache`` during one packed pass at a time.

    Raises: NotImplementedError from attention that asks for something not implemented.
    """

    is_compileable = False

    def __init__(self, mode: Mode, native: NativeAttention | None) -> None:
        self.mode = mode
        self.native = native
        self.pool: KVPool | None = None
        self.num_updates = 0
        self.num_attentions = 0
        self._plan: StepPlan | None = None
        self._layer = 0
        self._keys: torch.Tensor | None = None
        self.layers: list[Any] = []
        self.is_sliding: list[bool] = []
        self.is_linear: list[bool] = []
        self.is_dummy: list[bool] = []

    def begin(self, plan: StepPlan, pool: KVPool) -> None:
        if pool is not self.pool and self.native is not None:
            self.native.forget_slabs()
        self._plan, self.pool = plan, pool
        self.num_updates = self.num_attentions = 0

    def end(self) -> None:
        self._plan = self._keys = None

    def update(
        self, keys: torch.Tensor, values: torch.Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Store a layer's new rows.

        Shapes: keys [1, heads, T, dk], values [1, heads, T, dv].
        """
        plan, pool = self._plan, self.pool
        assert plan is not None
        assert pool is not None
        slab = pool.layer(layer_idx, keys, values)
        if self.native is not None and keys.dtype is slab.keys.dtype:
            self.native.write(slab, plan, keys, values)
        else:
            slab.write(plan.slots, keys[0], values[0], rows=plan.kv_rows)
        self.num_updates += 1
        self._layer = layer_idx
        if self.mode is Mode.GATHER:
            return gather(slab, plan)
        self._keys = keys
        return keys, values

    def attention(
        self,
        module: nn.Module,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        dropout: float = 0.0,
        scaling: float | None = None,
        sliding_window: int | None = None,
        softcap: float | None = None,
        s_aux: torch.Tensor | None = None,
        is_causal: bool | None = None,
        **kwargs: Any,
    ) -> tuple[torch.Tensor, None]:
        """The function registered with transformers' attention interface.

        Shapes: query [1, q_heads, T, dk]; returns [1, T, q_heads, dv].
        """
        if attention_mask is not None or is_causal is False or dropout:
            raise NotImplementedError("packed attention takes no mask, no dropout and is causal")
        for name in ("position_bias", "head_mask", "indices", "chunk_size"):
            if kwargs.get(name) is not None:
                raise NotImplementedError(f"packed attention does not implement {name}")
        plan, pool = self._plan, self.pool
        if plan is None or pool is None:
            raise NotImplementedError("attention outside of a packed pass")
        self.num_attentions += 1
        shape = Shape(
            scale=query.shape[-1] ** -0.5 if scaling is None else float(scaling),
            window=sliding_window or 0,
            softcap=softcap or 0.0,
            sinks=s_aux,
        )
        if self.mode is Mode.GATHER:
            return attend_gathered(query, key, value, plan, shape=shape), None
        if key is not self._keys:
            raise NotImplementedError("attention was given other keys than the cache returned")
        slab = pool.layers[self._layer]
        if self.native is not None:
            return self.native(query, slab, plan, shape=shape), None
        return attend_slab(query, slab, plan, shape=shape), None

    def get_seq_length(self, *_: Any, **__: Any) -> int:
        return 0

    def get_query_offset(self, *_: Any, **__: Any) -> int:
        return 0

    def get_mask_sizes(self, query_length: int, *_: Any, **__: Any) -> tuple[int, int]:
        return query_length, 0

    def __len__(self) -> int:
        return 0

    def __bool__(self) -> bool:
        return True
