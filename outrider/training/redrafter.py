"""A recurrent drafter in training: at every place of an answer it drafts some tokens.

The answer's own tokens move its state, as they do where a draft is right so far, and it learns the
target's distribution at each step. The matrix that makes logits and the embeddings stay the
target's own (Cheng et al. 2024, arXiv:2403.09919).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from outrider.heads.redrafter import ReDrafterConfig, ReDrafterHead
from outrider.sources import REDRAFTER
from outrider.training.batches import Batch
from outrider.training.heads import HeadRecipe, agreeing, check_last_tap, distance, drafting_places
from outrider.training.recipe import Ingredients

STEP_WEIGHT = 0.8  # of a step's loss, relative to the step before


@dataclass(frozen=True, slots=True)
class ReDrafterShape:
    """Sizes of the drafter and how far drafts reach in training; ``tap_layers`` as
    ``ReDrafterConfig``, ``state_size`` None: the target's hidden size."""

    tap_layers: tuple[int, ...]
    num_steps: int = 5
    num_layers: int = 2
    state_size: int | None = None
    kind: str = field(default=REDRAFTER, init=False)

    @property
    def description(self) -> str:
        """What is trained."""
        return "A recurrent drafter over the target's last hidden state"

    def facts(self) -> dict[str, Any]:
        """Return what makes a run of this shape what it is."""
        return {
            "tap_layers": list(self.tap_layers),
            "num_steps": self.num_steps,
            "num_layers": self.num_layers,
            "state_size": self.state_size,
        }

    def build(self, ingredients: Ingredients) -> "ReDrafterRecipe":
        """Return the drafter before its first step."""
        return ReDrafterRecipe(self, ingredients)


class ReDrafterRecipe(HeadRecipe):
    """The drafter in training; float32.

    Raises: ValueError if another layer is tapped than the one that the target's head reads.
    """

    kind = REDRAFTER
    head: ReDrafterHead

    def __init__(self, shape: ReDrafterShape, ingredients: Ingredients) -> None:
        super().__init__(ingredients, shape.tap_layers)
        check_last_tap(ingredients.target, shape.tap_layers)
        self.shape = shape
        width = self.borrowed.hidden_size
        self.head = ReDrafterHead(
            ReDrafterConfig(
                hidden_size=width,
                state_size=shape.state_size or width,
                exit_dim=width,
                num_draft_layers=shape.num_layers,
                vocab_size=ingredients.vocabulary.vocab_size,
                tap_layers=shape.tap_layers,
                draft_ids=tuple(ingredients.vocabulary.ids.tolist()),
            )
        )
        _begin(self.head, self.borrowed.embeddings)

    @property
    def num_draft_tokens(self) -> int:
        """Tokens of a replayed draft."""
        return self.shape.num_steps

    def loss(self, batch: Batch, generator: np.random.Generator) -> torch.Tensor:
        """Return the mean cross-entropy to the target's distribution, later steps weighing less.

        Step k at p has read the tokens up to p + 1 + k and says what stands at p + 2 + k, where the
        target says it at p + 1 + k.
        """
        hidden = self.features(batch)  # [B, L, H]
        rows, places = batch.is_answer[:, 2:].nonzero(as_tuple=True)
        # The first step says an answer's token; later ones go on from there while the answer lasts.
        state = self.head.start(self._embedded(batch, rows, places + 1))
        total, weight, weights = hidden.new_zeros(()), 1.0, 0.0
        length = batch.token_ids.shape[1]
        for step in range(self.shape.num_steps):
            if step:
                last = (places + 2 + step).clamp(max=length - 1)
                goes_on = (places + 2 + step < length) & batch.is_answer[rows, last]
                rows, places, state = rows[goes_on], places[goes_on], state[goes_on]
                state = self.head.step(state, self._embedded(batch, rows, places + 1 + step))
            out = self.head.out(hidden[rows, places], state)
            reads = hidden[rows, places + 1 + step]
            total = total + weight * distance(self.borrowed, out, reads)
            weights, weight = weights + weight, weight * STEP_WEIGHT
        return total / weights

    def _embedded(self, batch: Batch, rows: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
        return self.borrowed.embed(batch.token_ids[rows, places])

    @torch.inference_mode()
    def agreements(self, batch: Batch) -> Iterator[np.ndarray]:
        """Yield for every answer of the batch which of its tokens a draft would say.

        Shapes: [answer tokens, num_steps] bool, as ``Replay.add`` takes it.
        """
        places = drafting_places(batch)  # [B, A]
        length = batch.token_ids.shape[1]
        rows = torch.arange(len(places), device=places.device)[:, None]
        hidden = self.features(batch)[rows, places]
        state = self.head.start(self._embedded(batch, rows, places + 1))
        said = [self.borrowed.first_choices(self.head.out(hidden, state))]
        for step in range(1, self.shape.num_steps):
            # Behind the end of a row nothing is looked at.
            last = (places + 1 + step).clamp(max=length - 1)
            state = self.head.step(state, self._embedded(batch, rows, last))
            said.append(self.borrowed.first_choices(self.head.out(hidden, state)))
        yield from agreeing(batch, places, torch.stack(said, dim=-1))


def _begin(head: ReDrafterHead, embeddings: torch.Tensor) -> None:
    """Begin as the target's hidden state, with a state of unit scale: embeddings are small."""
    width = head.config.hidden_size
    with torch.no_grad():
        head.rnn_w.weight.div_(embeddings.std() * 3**-0.5)  # drawn with deviation (3 H) ** -0.5
        head.exit.weight.mul_(0.1)
        head.exit.weight[:, :width] += torch.eye(width)
