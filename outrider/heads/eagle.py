"""The EAGLE-3 head: one decoder layer over the target's hidden states (Li et al. 2025,
arXiv:2503.01840).

It reads pairs: the target's hidden states at position p, and the token at p + 1; it says what
follows at p + 2. Behind the last pair that the target gave, its own output takes the place of the
hidden states. Modules are named as in the checkpoints of the paper's authors.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding


@dataclass(frozen=True, slots=True)
class EagleConfig:
    """Shapes and switches of a head.

    ``tap_layers``: which hidden states are read; layer i is the residual stream that enters decoder
    layer i, the number of layers is what the target's own head reads. ``draft_ids``: the target id
    of every logit. ``rope``: as transformers' ``rope_parameters``.

    The switches: ``fc_norm`` normalises every hidden state by itself before ``fc``,
    ``norm_before_fc`` all of them together; ``norm_before_residual`` adds to the normalised feature
    instead of the plain one; ``norm_output`` hands the normalised output to the next step.
    """

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    target_hidden_size: int
    vocab_size: int
    tap_layers: tuple[int, ...]
    draft_ids: tuple[int, ...]
    rms_norm_eps: float = 1e-5
    max_position_embeddings: int = 2048
    rope: Mapping[str, Any] = field(
        default_factory=lambda: {"rope_type": "default", "rope_theta": 10000.0}
    )
    attention_bias: bool = False
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False

    @property
    def feature_size(self) -> int:
        """Numbers per position that are read of the target."""
        return len(self.tap_layers) * self.target_hidden_size


class _Attention(nn.Module):
    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        size, bias = 2 * config.hidden_size, config.attention_bias
        queries = config.num_attention_heads * config.head_dim
        keys = config.num_key_value_heads * config.head_dim
        self.q_proj = nn.Linear(size, queries, bias=bias)
        self.k_proj = nn.Linear(size, keys, bias=bias)
        self.v_proj = nn.Linear(size, keys, bias=bias)
        self.o_proj = nn.Linear(queries, config.hidden_size, bias=False)


class _Mlp(nn.Module):
    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class _Layer(nn.Module):
    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.hidden_norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = _Attention(config)
        self.post_attention_layernorm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = _Mlp(config)


@dataclass(frozen=True, slots=True)
class Attending:
    """A pair on its way through the layer, before and while it attends.

    Shapes: residual [..., H]; query [..., heads, D]; key, value [..., kv heads, D], rotated.
    """

    residual: torch.Tensor
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor


class EagleHead(nn.Module):
    """The head without what it borrows: embeddings and logits are added by those who use it.

    Whoever calls it attends: training and drafting see different rows.
    """

    def __init__(self, config: EagleConfig) -> None:
        super().__init__()
        self.config = config
        taps, width = len(config.tap_layers), config.target_hidden_size
        self.fc = nn.Linear(taps * width, config.hidden_size, bias=False)
        self.input_norm = (
            nn.RMSNorm(taps * width, config.rms_norm_eps) if config.norm_before_fc else None
        )
        self.fc_norm = (
            nn.ModuleList(nn.RMSNorm(width, config.rms_norm_eps) for _ in range(taps))
            if config.fc_norm
            else None
        )
        self.midlayer = _Layer(config)
        self.norm = nn.RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rope = _rope(config)

    def combine(self, features: torch.Tensor) -> torch.Tensor:
        """Return what the layer reads of the target's hidden states.

        Shapes: features [..., taps * target_hidden_size]; returns [..., H].
        """
        if self.input_norm is not None:
            features = self.input_norm(features)
        if self.fc_norm is not None:
            parts = features.chunk(len(self.fc_norm), dim=-1)
            normed = [norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)]
            features = torch.cat(normed, dim=-1)
        combined: torch.Tensor = self.fc(features)
        return combined

    def begin(
        self, embedded: torch.Tensor, feature: torch.Tensor, positions: torch.Tensor
    ) -> Attending:
        """Return a pair before it attends.

        Shapes: embedded, feature [B, N, H]; positions [B, N].
        """
        config, layer = self.config, self.midlayer
        normed = layer.hidden_norm(feature)
        x = torch.cat([layer.input_layernorm(embedded), normed], dim=-1)
        attention, size = layer.self_attn, config.head_dim
        query = attention.q_proj(x).unflatten(-1, (-1, size))
        key = attention.k_proj(x).unflatten(-1, (-1, size))
        value = attention.v_proj(x).unflatten(-1, (-1, size))
        cos, sin = self.rope(x, positions)
        cos, sin = cos[..., None, :], sin[..., None, :]
        return Attending(
            residual=normed if config.norm_before_residual else feature,
            query=_rotate(query, cos, sin),
            key=_rotate(key, cos, sin),
            value=value,
        )

    def end(self, residual: torch.Tensor, attended: torch.Tensor) -> torch.Tensor:
        """Return the output of the layer.

        Shapes: residual [..., H]; attended [..., heads, D]; returns [..., H].
        """
        layer = self.midlayer
        hidden = residual + layer.self_attn.o_proj(attended.flatten(-2))
        out: torch.Tensor = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        return out

    def feature_of(self, out: torch.Tensor, normed: torch.Tensor) -> torch.Tensor:
        """Return what stands for the hidden states in the next step; ``normed`` is norm(out)."""
        return normed if self.config.norm_output else out


def _rope(config: EagleConfig) -> LlamaRotaryEmbedding:
    return LlamaRotaryEmbedding(
        LlamaConfig(
            hidden_size=config.hidden_size,
            num_attention_heads=config.num_attention_heads,
            num_key_value_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            max_position_embeddings=config.max_position_embeddings,
            rope_parameters=dict(config.rope),
        )
    )


def _rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    low, high = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-high, low], dim=-1) * sin
