"""A small draft model: some layers of the target, trained to say what the target says.

Embeddings and head stay the target's own, the head cut to a draft vocabulary. Trained in parallel
it also learns to fill mask tokens behind the last known one, so that one pass proposes several
tokens (PARD, An et al. 2025, arXiv:2504.18583).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F
from transformers import AutoModelForCausalLM

from outrider.checkpoints import cut_layers
from outrider.checkpoints.pretrained import PretrainedConfig, load_pretrained, save_pretrained
from outrider.training.batches import Batch
from outrider.training.recipe import Ingredients
from outrider.training.vocabulary import DraftVocabulary

NUM_REPLAYED = 8  # draft tokens of a replay where the drafter sets no limit itself
LOGIT_ROWS = 1024  # rows whose logits are held at a time


@dataclass(frozen=True, slots=True)
class DraftModelShape:
    """Which layers of the target are kept, and how many tokens one pass proposes.

    ``num_frozen`` of them, the first ones, are not trained: they read what they always read.
    ``anchors_per_answer``: after which share of the answer tokens mask tokens are put in training.
    """

    layers: tuple[int, ...]
    num_parallel: int = 1
    anchors_per_answer: float = 0.15
    num_frozen: int = 0

    @property
    def kind(self) -> str:
        """Name on the command line."""
        return "parallel" if self.num_parallel > 1 else "draft-model"

    @property
    def description(self) -> str:
        """What is trained."""
        return f"Layers {', '.join(map(str, self.layers))} of the target"

    def facts(self) -> dict[str, Any]:
        """Return what makes a run of this shape what it is."""
        return {
            "layers": list(self.layers),
            "num_parallel": self.num_parallel,
            "num_frozen": self.num_frozen,
            "anchors_per_answer": self.anchors_per_answer,
        }

    def build(self, ingredients: Ingredients) -> "DraftModel":
        """Return the model before its first step."""
        name = f"layers-{'-'.join(map(str, self.layers))}"
        scratch = ingredients.folder / name
        return DraftModel(ingredients.target, scratch, self, ingredients.vocabulary)


class DraftModel(nn.Module):
    """The model in training; float32.

    Raises: ValueError if a layer does not exist.
    """

    head: torch.Tensor
    rows: torch.Tensor

    def __init__(
        self, target: Path, scratch: Path, shape: DraftModelShape, vocabulary: DraftVocabulary
    ) -> None:
        super().__init__()
        folder = cut_layers(target, scratch, layers=shape.layers)
        module: Any = AutoModelForCausalLM.from_pretrained(str(folder), dtype=torch.float32)
        module.train()
        self.shape, self.vocabulary = shape, vocabulary
        head = module.get_output_embeddings().weight.detach()
        self.register_buffer("head", head[vocabulary.ids].clone(), persistent=False)
        self.register_buffer("rows", vocabulary.rows, persistent=False)
        # Outside the module's registry: the target's own, neither trained nor saved.
        self._embeddings = (module.get_input_embeddings().requires_grad_(False),)
        self.body: Any = module.get_decoder()
        self.body.set_input_embeddings(nn.Identity())
        for layer in self.body.layers[: shape.num_frozen]:
            layer.requires_grad_(False)
        self.mask_embedding = nn.Parameter(self._embeddings[0].weight.mean(dim=0).clone())
        self.mask_embedding.requires_grad_(shape.num_parallel > 1)

    @property
    def num_draft_tokens(self) -> int:
        """Tokens that are proposed together."""
        return self.shape.num_parallel if self.shape.num_parallel > 1 else NUM_REPLAYED

    def loss(self, batch: Batch, generator: np.random.Generator) -> torch.Tensor:
        """Return the mean cross-entropy over answer tokens, mask places included."""
        if self.shape.num_parallel == 1:
            hidden = self._hidden(batch.token_ids)  # [B, L, H]
            wanted = batch.is_answer[:, 1:]
            return self._cross_entropy(hidden[:, :-1][wanted], batch.token_ids[:, 1:][wanted])
        layout = MaskLayout.draw(batch, self.shape, generator)
        hidden = self._hidden(batch.token_ids, layout)
        return self._cross_entropy(hidden[layout.has_label], layout.labels[layout.has_label])

    def _hidden(self, token_ids: torch.Tensor, layout: "MaskLayout | None" = None) -> torch.Tensor:
        embedded = self._embeddings[0].to(token_ids.device)(token_ids)
        if layout is None:
            return self._run(inputs_embeds=embedded)
        masks = self.mask_embedding.expand(len(token_ids), layout.num_masks, -1)
        return self._run(
            inputs_embeds=torch.cat([embedded, masks], dim=1),
            attention_mask=layout.attention_mask(),
            position_ids=layout.positions,
        )

    def _run(self, **inputs: torch.Tensor) -> torch.Tensor:
        hidden: torch.Tensor = self.body(**inputs, use_cache=False).last_hidden_state
        return hidden

    def _cross_entropy(self, hidden: torch.Tensor, token_ids: torch.Tensor) -> torch.Tensor:
        """Tokens outside the draft vocabulary can't be proposed and teach nothing."""
        rows = self.rows[token_ids]
        hidden, rows = hidden[rows >= 0], rows[rows >= 0]
        if not len(rows):
            return hidden.sum()  # nothing to learn from: zero, and no gradient
        return F.cross_entropy(hidden @ self.head.T, rows)

    @torch.inference_mode()
    def agreements(self, batch: Batch) -> Iterator[np.ndarray]:
        """Yield for every answer of the batch which of its tokens a draft would say.

        Shapes: [answer tokens, num_draft_tokens] bool, as ``Replay.add`` takes it.
        """
        num_drafted = self.num_draft_tokens
        if self.shape.num_parallel == 1:
            hidden = self._hidden(batch.token_ids)
            for row in range(len(batch.token_ids)):
                places = batch.is_answer[row].nonzero()[:, 0]
                said = self._first_choices(hidden[row, places - 1])
                agrees = (said == batch.token_ids[row, places]).cpu().numpy()
                padded = np.concatenate([agrees, np.zeros(num_drafted, np.bool_)])
                yield np.lib.stride_tricks.sliding_window_view(padded, num_drafted)[: len(agrees)]
            return
        for row in range(len(batch.token_ids)):
            yield self._agreements_in_parallel(batch.token_ids[row], batch.is_answer[row])

    def _agreements_in_parallel(self, token_ids: torch.Tensor, is_answer: torch.Tensor) -> Any:
        places = is_answer.nonzero()[:, 0]
        end = int(places[-1]) + 1
        token_ids, num_drafted = token_ids[:end], self.num_draft_tokens
        agrees = np.zeros((len(places), num_drafted), np.bool_)
        for some in torch.split(torch.arange(len(places)), 64):
            layout = MaskLayout.behind((places[some] - 1)[None], end, num_drafted)
            hidden = self._hidden(token_ids[None], layout)[0]
            first = hidden[places[some] - 1][:, None]  # [A, 1, H]
            masked = hidden[end:].reshape(len(some), num_drafted - 1, -1)
            said = self._first_choices(torch.cat([first, masked], dim=1).flatten(0, 1))
            said = said.reshape(len(some), num_drafted)
            for depth in range(num_drafted):
                wanted = places[some] + depth
                inside = wanted < end
                right = said[inside, depth] == token_ids[wanted[inside]]
                agrees[some[inside.cpu()], depth] = right.cpu().numpy()
        return agrees

    def _first_choices(self, hidden: torch.Tensor) -> torch.Tensor:
        rows = [(some @ self.head.T).argmax(dim=-1) for some in torch.split(hidden, LOGIT_ROWS)]
        return self.vocabulary.ids.to(hidden.device)[torch.cat(rows)]

    def load(self, folder: Path) -> None:
        """Go on with the weights that ``save`` wrote, where both have the same layers.

        Raises: ValueError if the layers differ.
        """
        config, layers, mask = load_pretrained(folder)
        if config.layers != self.shape.layers:
            raise ValueError(f"{folder} keeps layers {config.layers}, not {self.shape.layers}")
        self.body.load_state_dict(layers)
        if mask is not None:
            with torch.no_grad():
                self.mask_embedding.copy_(mask)

    def save(self, folder: Path, *, trained_for: str) -> None:
        """Write what was trained, in eight bits; the target's folder has the rest."""
        layers = {
            name: value for name, value in self.body.state_dict().items() if "embed" not in name
        }
        config = PretrainedConfig(
            layers=self.shape.layers,
            num_parallel=self.shape.num_parallel,
            draft_ids=tuple(self.vocabulary.ids.tolist()),
            target_weights_digest=trained_for,
        )
        mask = self.mask_embedding if self.shape.num_parallel > 1 else None
        save_pretrained(folder, config, layers, mask_embedding=mask)


@dataclass(frozen=True, slots=True)
class MaskLayout:
    """Mask tokens put behind known ones: groups of K - 1, each of which sees what its anchor sees
    and the masks before it in its group.

    Shapes: anchors [B, A] int64, places of the last known token; positions, labels and has_label
        [B, L + A (K - 1)].
    """

    anchors: torch.Tensor
    num_known: int
    group_size: int
    positions: torch.Tensor
    labels: torch.Tensor
    has_label: torch.Tensor

    @property
    def num_masks(self) -> int:
        """Mask tokens of a sequence."""
        return self.anchors.shape[1] * self.group_size

    @classmethod
    def behind(cls, anchors: torch.Tensor, num_known: int, num_parallel: int) -> "MaskLayout":
        """Put masks behind these anchors, without labels."""
        group = num_parallel - 1
        device = anchors.device
        known = torch.arange(num_known, device=device).expand(len(anchors), -1)
        order = torch.arange(group, device=device)
        behind = anchors[:, :, None] + 1 + order  # [B, A, K - 1]
        positions = torch.cat([known, behind.flatten(1)], dim=1)
        nothing = torch.zeros_like(positions)
        return cls(anchors, num_known, group, positions, nothing, nothing.bool())

    @classmethod
    def draw(
        cls, batch: Batch, shape: DraftModelShape, generator: np.random.Generator
    ) -> "MaskLayout":
        """Draw anchors among the places whose next token is an answer's, and label everything."""
        num_known = batch.token_ids.shape[1]
        num_answer = batch.is_answer.sum(dim=1)
        num_anchors = max(1, round(float(num_answer.float().mean()) * shape.anchors_per_answer))
        drawn = torch.from_numpy(generator.random((len(num_answer), num_anchors)))
        drawn = drawn.to(num_answer.device)
        first = batch.is_answer.int().argmax(dim=1)
        anchors = first[:, None] - 1 + (drawn * num_answer[:, None]).long()
        layout = cls.behind(anchors, num_known, shape.num_parallel)
        following = (layout.positions + 1).clamp(max=num_known - 1)
        labels = batch.token_ids.gather(1, following)
        is_answer = batch.is_answer.gather(1, following)
        has_label = is_answer & (layout.positions + 1 < num_known)
        return cls(anchors, num_known, layout.group_size, layout.positions, labels, has_label)

    def attention_mask(self) -> torch.Tensor:
        """Return what is added to the scores; [B, 1, N, N] float32."""
        size, device = self.positions.shape[1], self.positions.device
        known = torch.arange(self.num_known, device=device)
        sees = torch.zeros(len(self.anchors), size, size, dtype=torch.bool, device=device)
        sees[:, : self.num_known, : self.num_known] = known[:, None] >= known
        owner = torch.arange(self.num_masks, device=device) // self.group_size
        anchor = self.anchors[:, owner]  # [B, M]
        sees[:, self.num_known :, : self.num_known] = anchor[:, :, None] >= known
        order = torch.arange(self.num_masks, device=device)
        sees[:, self.num_known :, self.num_known :] = (owner[:, None] == owner) & (
            order[:, None] >= order
        )
        hidden = torch.finfo(torch.float32).min
        return torch.where(sees, 0.0, hidden)[:, None]
