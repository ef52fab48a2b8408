"""What the heads' engine asks of a head in one pass, and what a head is to it."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch


class HeadState(Protocol):
    """What a head keeps of one sequence: pairs that were read, and draft nodes behind them.

    A pair is the target's hidden states at a position and the token behind it. ``root_logits`` [D]
    is what the head says behind the last pair, None where none was read since it changed.
    """

    root_logits: torch.Tensor | None

    @property
    def num_pairs(self) -> int:
        """Pairs that were read."""
        ...

    def truncate(self, num_pairs: int) -> None:
        """Forget the pairs from there on."""
        ...

    def adopt(self, other: "HeadState", num_pairs: int) -> None:
        """Begin with the first pairs that another sequence has read."""
        ...

    def drop_nodes(self) -> None:
        """Forget all draft nodes."""
        ...


@dataclass(frozen=True, slots=True)
class Reading:
    """Take in pairs; the head then says what follows the last of them: one row of logits.

    Shapes: features [n, W] as the target gave them; token_ids [n], those behind.
    """

    state: HeadState
    features: torch.Tensor
    token_ids: Sequence[int]


@dataclass(frozen=True, slots=True)
class Growing:
    """Add draft nodes below earlier ones; a row of logits for each.

    ``parents``: indices of nodes in the order in which they were added, -1 for the last pair.
    """

    state: HeadState
    parents: Sequence[int]
    token_ids: Sequence[int]


Work = Reading | Growing


class Head(Protocol):
    """A draft head that works on many sequences at once.

    ``reach``: tokens that it can say behind the last pair; None: any number.
    """

    reach: int | None

    def open(self) -> HeadState:
        """Return the state of a new sequence."""
        ...

    def forward(self, works: Sequence[Work]) -> torch.Tensor:
        """Do all works; [rows of all works in order, D] float32."""
        ...


def num_rows(work: Work) -> int:
    """Return the rows of logits that a work gives."""
    return 1 if isinstance(work, Reading) else len(work.token_ids)
