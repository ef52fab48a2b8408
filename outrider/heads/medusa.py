"""Medusa heads: each says one token further from the same hidden state (Cai et al. 2024,
arXiv:2401.10774).

Head i reads the target's last hidden state at position p and says the token at p + 2 + i; the
target's own head says the one at p + 1. The heads are independent of each other, so what they say
together is a guess per position, not a sequence.
"""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F


@dataclass(frozen=True, slots=True)
class MedusaConfig:
    """Shapes of the heads.

    ``hidden_size`` is the target's. ``tap_layers`` holds one entry, the target's number of decoder
    layers: the heads read what its own head reads. ``draft_ids``: the target id of every logit.
    ``bias``: whether the residual blocks add one.
    """

    num_heads: int
    num_layers: int
    hidden_size: int
    vocab_size: int
    tap_layers: tuple[int, ...]
    draft_ids: tuple[int, ...]
    bias: bool = True


class ResidualBlock(nn.Module):
    """x + SiLU(W x + b), some times; begins as the identity."""

    def __init__(self, size: int, num_layers: int, *, bias: bool = True) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(size, size, bias=bias) for _ in range(num_layers))
        for parameter in self.layers.parameters():
            nn.init.zeros_(parameter)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + F.silu(layer(x))
        return x


class MedusaHead(nn.Module):
    """All heads without the matrices that make logits of their outputs: those may be borrowed.

    Tensors are named ``blocks.{head}.layers.{layer}``, as vLLM names them.
    """

    def __init__(self, config: MedusaConfig) -> None:
        super().__init__()
        self.config = config
        self.blocks = nn.ModuleList(
            ResidualBlock(config.hidden_size, config.num_layers, bias=config.bias)
            for _ in range(config.num_heads)
        )

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return what each head gives to its matrix of logits.

        Shapes: hidden [..., H]; returns [..., num_heads, H].
        """
        return torch.stack([block(hidden) for block in self.blocks], dim=-2)
