"""All decoder layers of a pass in one call, for models built as Llama made common.

Between the kernels of a small model lies as much Python as there is work in them; here it is gone.
The start-up test compares the fused layers with the model's own modules, so a model that only looks
like one of these runs as it did before.
"""

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from outrider.engine.attention import slab_of
from outrider.engine.linear import NativeLinear
from outrider.engine.model import LoadedModel
from outrider.engine.norm import NativeRMSNorm
from outrider.engine.plan import StepPlan
from outrider.engine.pool import KVPool
from outrider.engine.taps import States, keep
from outrider.kernels import TYPE_CODES, Attention, Kernels, Layer, Pass, Segment

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
HEAD_NORMS = ("q_norm", "k_norm")
MLP = ("gate_proj", "up_proj", "down_proj")
WIDTH_MULTIPLE, HEAD_MULTIPLE = 8, 16


class NotFusible(Exception):
    """The model is built otherwise; the message says where."""


@dataclass(frozen=True, slots=True)
class _Shape:
    """What all layers have in common."""

    width: int
    inner: int
    q_heads: int
    head_size: int
    scale: float
    eps: float
    dtype: torch.dtype


class FusedDecoder:
    """Runs a model whose linears and norms are native ones already.

    Raises: NotFusible if it is not built as the kernel computes.
    """

    def __init__(self, model: LoadedModel, kernels: Kernels) -> None:
        module: Any = model.module
        decoder = module.get_decoder() if hasattr(module, "get_decoder") else None
        for name in ("embed_tokens", "layers", "norm", "rotary_emb"):
            if not isinstance(getattr(decoder, name, None), nn.Module):
                raise NotFusible(f"its decoder has no {name}")
        config = model.config.get_text_config()
        kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
        if kinds != {"full_attention"} or getattr(config, "sliding_window", None):
            raise NotFusible("it attends within a window")
        layers = list(decoder.layers)  # type: ignore[union-attr]
        if len(layers) != config.num_hidden_layers:
            raise NotFusible(f"{len(layers)} layers, {config.num_hidden_layers} in its config")
        shapes = [_shape(layer, config) for layer in layers]
        if len(set(shapes)) != 1:
            raise NotFusible("its layers differ in shape")
        self._shape = shapes[0]
        self._decoder, self._head = decoder, module.get_output_embeddings()
        if not isinstance(self._head, nn.Linear):
            raise NotFusible("it has no output head")
        self._kernels = kernels
        self._modules = layers
        self._layers = (Layer * len(layers))()
        self._biases: list[torch.Tensor] = []
        for entry, layer in zip(self._layers, layers, strict=True):
            self._describe(entry, layer)
        self._pool: KVPool | None = None
        self._attention = Attention(
            q_heads=self._shape.q_heads, scale=self._shape.scale, window=0, softcap=0.0, sinks=0
        )

    def _describe(self, entry: Any, layer: Any) -> None:
        attention, mlp = layer.self_attn, layer.mlp
        entry.attention_norm = layer.input_layernorm.weight.data_ptr()
        entry.mlp_norm = layer.post_attention_layernorm.weight.data_ptr()
        for name in HEAD_NORMS:
            norm = getattr(attention, name, None)
            setattr(entry, name, 0 if norm is None else norm.weight.data_ptr())
        for index, name in enumerate(ATTENTION[:3]):
            entry.qkv[index] = self._segment(getattr(attention, name))
        entry.o = self._segment(attention.o_proj)
        for index, name in enumerate(MLP[:2]):
            entry.gate_up[index] = self._segment(getattr(mlp, name))
        entry.down = self._segment(mlp.down_proj)

    def _segment(self, linear: NativeLinear) -> Segment:
        bias = 0
        if linear.bias is not None:
            self._biases.append(linear.bias.detach().float())
            bias = self._biases[-1].data_ptr()
        return Segment(w=linear.weight.data_ptr(), bias=bias, n=linear.out_features)

    def forward(self, plan: StepPlan, pool: KVPool) -> tuple[torch.Tensor, States]:
        """Run one pass; returns logits and hidden states as ``PackedModel.forward`` does.

        Raises: ValueError if there is no layer of which hidden states are asked for.
        """
        last = len(self._layers)
        for tap in plan.taps:
            if not 0 <= tap <= last:
                raise ValueError(f"layer {tap} is not in [0, {last}]")
        hidden = self._decoder.embed_tokens(plan.input_ids)  # type: ignore[union-attr]
        cos, sin = self._decoder.rotary_emb(hidden, plan.position_ids)  # type: ignore[union-attr]
        shape, rows = self._shape, hidden[0].contiguous()  # [T, H]
        if cos.dtype is not shape.dtype or cos.shape != (1, len(rows), shape.head_size):
            raise NotFusible(f"its rotary embedding is {cos.dtype} {tuple(cos.shape)}")
        if rows.dtype is not shape.dtype or rows.shape[1] != shape.width:
            raise NotFusible(f"its embeddings are {rows.dtype} {tuple(rows.shape)}")
        self._use(pool)
        attention, cos, sin = self._attention, cos.contiguous(), sin.contiguous()
        attention.starts, attention.past = plan.starts.ctypes.data, plan.past.ctypes.data
        attention.tables, attention.table_stride = plan.tables.ctypes.data, plan.tables.shape[1]
        attention.num_sequences = plan.num_sequences
        through = Pass(
            hidden=rows.data_ptr(),
            rows=len(rows),
            width=shape.width,
            inner=shape.inner,
            cos=cos.data_ptr(),
            sin=sin.data_ptr(),
            slots=plan.slots.data_ptr(),
            kv_rows=0 if plan.kv_rows is None else plan.kv_rows.data_ptr(),
            num_slots=len(plan.slots),
            attend=ctypes.pointer(attention),
            eps=shape.eps,
            type=TYPE_CODES[shape.dtype],
        )
        states: dict[int, torch.Tensor] = {}
        begin = 0
        for end in sorted({*plan.taps, last}):
            self._kernels.layers(
                ctypes.addressof(self._layers),
                *(begin, end, ctypes.addressof(through), self._kernels.threads),
            )
            begin = end
            if end == last:
                rows = self._decoder.norm(rows)  # type: ignore[union-attr]
            if end in plan.taps:
                assert plan.tapped_rows is not None
                states[end] = keep(rows, plan.tapped_rows)
        logits: torch.Tensor = self._head(rows[plan.logit_rows])
        return logits.float(), states

    def copy_block(self, pool: KVPool, source: int, targets: Sequence[int]) -> None:
        """Copy a block of every layer into others."""
        self._use(pool)
        numbers = (ctypes.c_int32 * len(targets))(*targets)
        self._kernels.copy_block(
            *(ctypes.addressof(self._layers), len(self._layers), source),
            *(ctypes.addressof(numbers), len(targets)),
        )

    def _use(self, pool: KVPool) -> None:
        """Point the layers at the slabs of a pool, which must have all of them."""
        if pool is self._pool:
            return
        for index, module in enumerate(self._modules):
            self._layers[index].pool = slab_of(pool.layers[module.self_attn.layer_idx])
        self._pool = pool


def _shape(layer: Any, config: Any) -> _Shape:
    """Return a layer's shape.

    Raises: NotFusible if anything in it is not what the kernel computes.
    """
    attention: Any = getattr(layer, "self_attn", None)
    mlp: Any = getattr(layer, "mlp", None)
    norms = ("input_layernorm", "post_attention_layernorm")
    _has_only(layer, "layer", ("self_attn", "mlp", *norms))
    _has_only(attention, "attention", ATTENTION, optional=HEAD_NORMS)
    _has_only(mlp, "mlp", (*MLP, "act_fn"))
    if type(mlp.act_fn).__name__ not in ("SiLU", "SiLUActivation"):
        raise NotFusible(f"its activation is {type(mlp.act_fn).__name__}")
    head_norms = [n for n in HEAD_NORMS if hasattr(attention, n)]
    native_norms = [getattr(layer, n) for n in norms] + [getattr(attention, n) for n in head_norms]
    if not all(isinstance(norm, NativeRMSNorm) and not norm.gemma for norm in native_norms):
        raise NotFusible("its norms are of another kind")
    linears = [getattr(attention, n) for n in ATTENTION] + [getattr(mlp, n) for n in MLP]
    if not all(isinstance(linear, NativeLinear) for linear in linears):
        raise NotFusible("its linears are of another kind")
    types = {each.weight.dtype for each in (*linears, *native_norms)}
    epsilons = {norm.eps for norm in native_norms}
    if len(types) != 1 or len(epsilons) != 1:
        raise NotFusible("its parameters differ in type, or its norms in epsilon")
    head_size = int(getattr(attention, "head_dim", 0))
    scale = getattr(attention, "scaling", None)
    width, inner = attention.q_proj.in_features, mlp.gate_proj.out_features
    if width % WIDTH_MULTIPLE or inner % WIDTH_MULTIPLE or head_size % HEAD_MULTIPLE:
        raise NotFusible(f"its widths {width}, {inner}, {head_size} do not fit the vectors")
    if not head_size or not isinstance(scale, float):
        raise NotFusible("its attention states no head_dim or scaling")
    return _Shape(
        width=width,
        inner=inner,
        q_heads=attention.q_proj.out_features // head_size,
        head_size=head_size,
        scale=scale,
        eps=epsilons.pop(),
        dtype=types.pop(),
    )


def _has_only(
    module: nn.Module | None, what: str, names: Sequence[str], optional: Sequence[str] = ()
) -> None:
    found: Mapping[str, nn.Module] = dict(module.named_children()) if module is not None else {}
    missing, others = set(names) - set(found), set(found) - {*names, *optional}
    if missing or others:
        raise NotFusible(f"its {what} has other parts: {sorted(missing | others)}")
