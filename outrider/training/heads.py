"""What draft heads in training share: the target's embeddings, its head, its hidden states."""

from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import AutoModelForCausalLM

from outrider.checkpoints.heads import HeadFile, load_head, save_head
from outrider.training.batches import Batch
from outrider.training.features import FeatureStore
from outrider.training.recipe import Ingredients
from outrider.training.vocabulary import DraftVocabulary

LOGIT_ROWS = 1024  # rows whose logits are held at a time, where only the best is wanted


class BorrowedHead(nn.Module):
    """Embeddings and head of a target, the head cut to a draft vocabulary; never trained."""

    embeddings: torch.Tensor
    weight: torch.Tensor
    draft_ids: torch.Tensor

    def __init__(self, target: Path, vocabulary: DraftVocabulary) -> None:
        super().__init__()
        module: Any = AutoModelForCausalLM.from_pretrained(str(target), dtype=torch.float32)
        embeddings = module.get_input_embeddings().weight.detach()
        head = module.get_output_embeddings().weight.detach()
        self.register_buffer("embeddings", embeddings.clone(), persistent=False)
        self.register_buffer("weight", head[vocabulary.ids].clone(), persistent=False)
        self.register_buffer("draft_ids", vocabulary.ids, persistent=False)

    @property
    def hidden_size(self) -> int:
        """Width of what the target's head reads."""
        return self.weight.shape[1]

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Return the embeddings of ids; [..., H] float32."""
        return self.embeddings[token_ids]

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the logits of the draft vocabulary; hidden [..., H] is normalised already."""
        return hidden @ self.weight.T

    def first_choices(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return the likeliest target ids; hidden [..., H] to [...] int64."""
        flat = hidden.flatten(0, -2)
        rows = [self.logits(some).argmax(dim=-1) for some in torch.split(flat, LOGIT_ROWS)]
        return self.draft_ids[torch.cat(rows)].reshape(hidden.shape[:-1])


class HeadRecipe(nn.Module):
    """A head in training beside what it borrows and the target's hidden states."""

    kind: str
    head: nn.Module

    def __init__(self, ingredients: Ingredients, tap_layers: tuple[int, ...]) -> None:
        super().__init__()
        target, device = ingredients.target, ingredients.device
        self.borrowed = BorrowedHead(target, ingredients.vocabulary)
        store = FeatureStore(target, tap_layers, ingredients.features, device)
        self._store = (store,)  # outside the module's registry

    def features(self, batch: Batch) -> torch.Tensor:
        """Return the target's hidden states over a batch; [B, L, W] float32."""
        return self._store[0].of(batch.examples).float()

    def load(self, folder: Path) -> None:
        """Go on with the weights that ``save`` wrote.

        Raises: ValueError if it is a head of another kind or of other sizes.
        """
        stated, tensors = load_head(folder)
        if stated.kind != self.kind:
            raise ValueError(f"{folder} holds a head of kind {stated.kind}, not {self.kind}")
        try:
            self.head.load_state_dict(tensors)
        except RuntimeError as error:
            raise ValueError(f"{folder}: {error}") from error

    def save(self, folder: Path, *, trained_for: str) -> None:
        """Write what was trained, in eight bits; the target's folder has the rest."""
        config = asdict(self.head.config)  # type: ignore[arg-type]
        save_head(folder, HeadFile(self.kind, config, trained_for), self.head.state_dict())


def said_by_target(borrowed: BorrowedHead, hidden: torch.Tensor) -> torch.Tensor:
    """Return the target's distribution over the draft vocabulary.

    Shapes: hidden [R, H], what the target's head reads; returns [R, D].
    """
    return borrowed.logits(hidden).softmax(dim=-1)
