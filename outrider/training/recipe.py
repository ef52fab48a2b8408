"""What the trainer asks of a kind of drafter."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from outrider.training.batches import Batch
from outrider.training.vocabulary import DraftVocabulary


class Recipe(Protocol):
    """A drafter in training; an ``nn.Module`` too."""

    @property
    def num_draft_tokens(self) -> int:
        """Tokens of a replayed draft."""
        ...

    def loss(self, batch: Batch, generator: np.random.Generator) -> torch.Tensor:
        """Return the mean loss of a batch; everything random comes from the generator."""
        ...

    def agreements(self, batch: Batch) -> Iterator[np.ndarray]:
        """Yield a table for ``Replay.add`` for every answer of the batch."""
        ...

    def load(self, folder: Path) -> None:
        """Go on with weights that ``save`` wrote; Raises: ValueError if they do not fit."""
        ...

    def save(self, folder: Path, *, trained_for: str) -> None:
        """Write what was trained; ``trained_for`` is the digest of the target's weights."""
        ...


@dataclass(frozen=True, slots=True)
class Ingredients:
    """What recipes are made from. ``folder`` is the run's, ``features`` that of hidden states."""

    target: Path
    vocabulary: DraftVocabulary
    folder: Path
    features: Path
    device: torch.device


class Shape(Protocol):
    """A kind of drafter and its sizes."""

    @property
    def kind(self) -> str:
        """Name on the command line."""
        ...

    @property
    def description(self) -> str:
        """What is trained, in half a sentence for the card."""
        ...

    def facts(self) -> dict[str, Any]:
        """Return what makes a run of this shape what it is."""
        ...

    def build(self, ingredients: Ingredients) -> Recipe:
        """Return the recipe before its first step; Raises: ValueError, OSError."""
        ...
