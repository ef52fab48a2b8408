"""A recurrent drafter: one hidden state of the target, then a state of its own (Cheng et al. 2024,
arXiv:2403.09919).

It reads the target's last hidden state at position p once. Every token behind p moves the state
s_t = SiLU(U s_{t-1} + W E(token) + b), and state and hidden state together say the next token: with
the token at p + 1 what follows at p + 2, with that one what follows at p + 3, and so on.
"""

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from outrider.heads.medusa import ResidualBlock


@dataclass(frozen=True, slots=True)
class ReDrafterConfig:
    """Shapes of the drafter.

    ``hidden_size`` is the target's, of its hidden states and embeddings alike; ``exit_dim``, the
    width of the output, equals it, since the target's own head reads the output. ``tap_layers``
    holds one entry, the target's number of decoder layers. ``draft_ids``: the target id of every
    logit. ``rnn`` is the recurrence; without it there is no drafter of this kind here.

    Raises: ValueError if ``exit_dim`` is another width or ``rnn`` is false.
    """

    hidden_size: int
    state_size: int
    exit_dim: int
    num_draft_layers: int
    vocab_size: int
    tap_layers: tuple[int, ...]
    draft_ids: tuple[int, ...]
    rnn: bool = True

    def __post_init__(self) -> None:
        if self.exit_dim != self.hidden_size:
            raise ValueError(
                f"exit_dim must be hidden_size {self.hidden_size}, not {self.exit_dim}"
            )
        if not self.rnn:
            raise ValueError("rnn is false: only the recurrent form is supported")


class ReDrafterHead(nn.Module):
    """The drafter without what it borrows: embeddings and the matrix that makes logits."""

    def __init__(self, config: ReDrafterConfig) -> None:
        super().__init__()
        self.config = config
        width = config.hidden_size + config.state_size
        self.rnn_u = nn.Linear(config.state_size, config.state_size, bias=False)
        self.rnn_w = nn.Linear(config.hidden_size, config.state_size)
        self.block = ResidualBlock(width, config.num_draft_layers)
        self.exit = nn.Linear(width, config.exit_dim, bias=False)

    def start(self, embedded: torch.Tensor) -> torch.Tensor:
        """Return the state after the first token behind the hidden state.

        Shapes: embedded [..., H]; returns [..., S].
        """
        return F.silu(self.rnn_w(embedded))

    def step(self, state: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """Return the state after one more token.

        Shapes: state [..., S]; embedded [..., H]; returns [..., S].
        """
        return F.silu(self.rnn_u(state) + self.rnn_w(embedded))

    def out(self, hidden: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        """Return what the matrix of logits reads, normalised already.

        Shapes: hidden [..., H]; state [..., S]; returns [..., H].
        """
        out: torch.Tensor = self.exit(self.block(torch.cat([hidden, state], dim=-1)))
        return out
