"""Medusa heads in training: each learns the target's distribution one place further on.

The matrix that makes logits stays the target's own for all of them, so only residual blocks are
trained ("Medusa-1", Cai et al. 2024, arXiv:2401.10774, section 2.2.1); they learn the target's
distribution rather than the token that was drawn from it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from outrider.heads.medusa import MedusaConfig, MedusaHead
from outrider.sources import MEDUSA
from outrider.training.batches import Batch
from outrider.training.heads import HeadRecipe, agreeing, check_last_tap, distance, drafting_places
from outrider.training.recipe import Ingredients

HEAD_WEIGHT = 0.8  # of a head's loss, relative to the head before


@dataclass(frozen=True, slots=True)
class MedusaShape:
    """How many heads of how many residual layers each; ``tap_layers`` as ``MedusaConfig``."""

    tap_layers: tuple[int, ...]
    num_heads: int = 4
    num_layers: int = 1
    kind: str = field(default=MEDUSA, init=False)

    @property
    def description(self) -> str:
        """What is trained."""
        return f"{self.num_heads} Medusa heads over the target's last hidden state"

    def facts(self) -> dict[str, Any]:
        """Return what makes a run of this shape what it is."""
        return {
            "tap_layers": list(self.tap_layers),
            "num_heads": self.num_heads,
            "num_layers": self.num_layers,
        }

    def build(self, ingredients: Ingredients) -> "MedusaRecipe":
        """Return the heads before their first step."""
        return MedusaRecipe(self, ingredients)


class MedusaRecipe(HeadRecipe):
    """The heads in training; float32.

    Raises: ValueError if another layer is tapped than the one that the target's head reads.
    """

    kind = MEDUSA
    head: MedusaHead

    def __init__(self, shape: MedusaShape, ingredients: Ingredients) -> None:
        super().__init__(ingredients, shape.tap_layers)
        check_last_tap(ingredients.target, shape.tap_layers)
        self.shape = shape
        self.head = MedusaHead(
            MedusaConfig(
                num_heads=shape.num_heads,
                num_layers=shape.num_layers,
                hidden_size=self.borrowed.hidden_size,
                vocab_size=ingredients.vocabulary.vocab_size,
                tap_layers=shape.tap_layers,
                draft_ids=tuple(ingredients.vocabulary.ids.tolist()),
            )
        )

    @property
    def num_draft_tokens(self) -> int:
        """Tokens of a replayed draft."""
        return self.shape.num_heads

    def loss(self, batch: Batch, generator: np.random.Generator) -> torch.Tensor:
        """Return the mean cross-entropy to the target's distribution, further heads weighing less.

        What head i says at p stands at p + 2 + i, where the target says it at p + 1 + i.
        """
        hidden = self.features(batch)  # [B, L, H]
        total, weight, weights = hidden.new_zeros(()), 1.0, 0.0
        for index, block in enumerate(self.head.blocks):
            rows, said = batch.is_answer[:, 2 + index :].nonzero(as_tuple=True)
            out = block(hidden[rows, said])
            reads = hidden[rows, said + 1 + index]
            total = total + weight * distance(self.borrowed, out, reads)
            weights, weight = weights + weight, weight * HEAD_WEIGHT
        return total / weights

    @torch.inference_mode()
    def agreements(self, batch: Batch) -> Iterator[np.ndarray]:
        """Yield for every answer of the batch which of its tokens a draft would say.

        Shapes: [answer tokens, num_heads] bool, as ``Replay.add`` takes it.
        """
        hidden = self.features(batch)
        places = drafting_places(batch)  # [B, A]
        rows = torch.arange(len(places), device=places.device)[:, None]
        out = self.head(hidden[rows, places])  # [B, A, num_heads, H]
        yield from agreeing(batch, places, self.borrowed.first_choices(out))
