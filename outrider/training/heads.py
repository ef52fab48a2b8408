"""What draft heads in training share: the target's embeddings, its head, its hidden states."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from transformers import AutoConfig, AutoModelForCausalLM

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
        config: Any = self.head.config
        stated = HeadFile(self.kind, asdict(config), trained_for)
        save_head(folder, stated, self.head.state_dict())


def check_last_tap(target: Path, tap_layers: tuple[int, ...]) -> None:
    """Check that the last tap is what the target's head reads: its distribution is made of it.

    Raises: ValueError naming both layers.
    """
    text = AutoConfig.from_pretrained(str(target)).get_text_config()
    if tap_layers[-1] != text.num_hidden_layers:
        raise ValueError(
            f"the last tapped layer must be {text.num_hidden_layers}, what the target's head "
            f"reads, not {tap_layers[-1]}"
        )


def distance(borrowed: BorrowedHead, out: torch.Tensor, reads: torch.Tensor) -> torch.Tensor:
    """Return the mean cross-entropy of what a head says to what the target says; 0 of no rows.

    Shapes: out [R, H], what the borrowed head is given; reads [R, H], what the target's head reads.
    """
    if not len(out):
        return out.sum()
    with torch.no_grad():
        wanted = said_by_target(borrowed, reads)
    return -(wanted * F.log_softmax(borrowed.logits(out), dim=-1)).sum(dim=-1).mean()


def drafting_places(batch: Batch) -> torch.Tensor:
    """Return for every answer token the place whose hidden state its draft begins with: two before
    it, the last that the target has computed when the token between is its newest.

    Shapes: [B, A] int64, A that of the longest answer; places behind an answer mean nothing.
    """
    num_answer = batch.is_answer.sum(dim=1)
    first = batch.is_answer.int().argmax(dim=1)
    offsets = torch.arange(int(num_answer.max()), device=first.device)
    return (first[:, None] - 2 + offsets).clamp(0, max(batch.token_ids.shape[1] - 3, 0))


def has_answer(batch: Batch, places: torch.Tensor) -> torch.Tensor:
    """Return whether an answer's token stands at places [B, A]; bool of that shape."""
    length = batch.token_ids.shape[1]
    return (places < length) & batch.is_answer.gather(1, places.clamp(max=length - 1))


def agreeing(batch: Batch, places: torch.Tensor, said: torch.Tensor) -> Iterator[np.ndarray]:
    """Yield a table for ``Replay.add`` for every answer: what drafts say compared with its tokens.

    Shapes: places [B, A] as ``drafting_places``; said [B, A, D], in turn the ids for the places
        from two behind on; tables [answer tokens, D] bool.
    """
    last = batch.token_ids.shape[1] - 1
    agrees = []
    for depth, ids in enumerate(said.unbind(dim=-1)):
        wanted = places + 2 + depth
        right = batch.token_ids.gather(1, wanted.clamp(max=last)) == ids
        agrees.append(right & has_answer(batch, wanted))
    table = torch.stack(agrees, dim=-1).cpu().numpy()
    for row, count in enumerate(batch.is_answer.sum(dim=1).tolist()):
        yield table[row, :count]


def said_by_target(borrowed: BorrowedHead, hidden: torch.Tensor) -> torch.Tensor:
    """Return the target's distribution over the draft vocabulary.

    Shapes: hidden [R, H], what the target's head reads; returns [R, D].
    """
    return borrowed.logits(hidden).softmax(dim=-1)
