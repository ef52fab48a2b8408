"""A draft head as the drafter uses it, whatever layout it was published in."""

from dataclasses import dataclass
from typing import Literal

import torch

from outrider.heads.eagle import EagleHead
from outrider.heads.medusa import MedusaHead
from outrider.heads.redrafter import ReDrafterHead

Kind = Literal["eagle3", "medusa", "redrafter"]


@dataclass(frozen=True, slots=True)
class LoadedHead:
    """A head, ready to draft, with what it borrows.

    ``tap_layers``: which of the target's hidden states it reads, as ``EagleConfig``.
    ``target_weights_digest``: of the target that it was made for, empty where the folder does not
    say.

    Shapes: embeddings [V, H], None for Medusa, which reads no tokens; draft_ids [D] int64, target
        ids, ascending; lm_head, a row for each of them: [D, H], or [heads, D, H] where every head
        has its own.
    """

    kind: Kind
    module: EagleHead | MedusaHead | ReDrafterHead
    embeddings: torch.Tensor | None
    lm_head: torch.Tensor
    draft_ids: torch.Tensor
    tap_layers: tuple[int, ...]
    target_hidden_size: int
    vocab_size: int
    max_position_embeddings: int
    target_weights_digest: str
