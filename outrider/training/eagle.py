"""An EAGLE-3 head in training: every step it drafts as it will when it serves.

The layer starts as the target's last one and the logits are the target's own head, so the head
learns to say in the target's words what follows one token later. Behind the target's hidden states
it goes on with its own output for some steps ("training-time test", Li et al. 2025,
arXiv:2503.01840, section 3.1); it learns the target's distribution rather than the token that was
drawn from it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F
from transformers import AutoModelForCausalLM

from outrider.heads.eagle import Attending, EagleConfig, EagleHead
from outrider.sources import EAGLE3
from outrider.training.batches import Batch
from outrider.training.heads import (
    HeadRecipe,
    agreeing,
    check_last_tap,
    distance,
    drafting_places,
    has_answer,
)
from outrider.training.recipe import Ingredients

NUM_DRAFTED = 6  # tokens of a replayed draft
FC_NOISE = 0.1  # of fc as it begins, relative to what is inherited
NUM_SCALED = 64  # tokens whose hidden states tell the scale of the residual stream
STEP_WEIGHT = 0.8  # of a step's loss, relative to the step before


@dataclass(frozen=True, slots=True)
class EagleShape:
    """What is read of the target and how far drafts reach in training.

    ``tap_layers``: as ``EagleConfig``; the last must be what the target's head reads, since the
    target's distribution is made of it. ``num_steps``: tokens of a draft in training.
    ``anchors_per_answer``: after which share of the answer's tokens the further steps go on.
    """

    tap_layers: tuple[int, ...]
    num_steps: int = 4
    anchors_per_answer: float = 0.4
    kind: str = field(default=EAGLE3, init=False)

    @property
    def description(self) -> str:
        """What is trained."""
        layers = ", ".join(map(str, self.tap_layers))
        return f"An EAGLE-3 head over the hidden states that enter layers {layers}"

    def facts(self) -> dict[str, Any]:
        """Return what makes a run of this shape what it is."""
        return {
            "tap_layers": list(self.tap_layers),
            "num_steps": self.num_steps,
            "anchors_per_answer": self.anchors_per_answer,
        }

    def build(self, ingredients: Ingredients) -> "EagleRecipe":
        """Return the head before its first step."""
        return EagleRecipe(self, ingredients)


class EagleRecipe(HeadRecipe):
    """The head in training; float32.

    Raises: ValueError if the last tapped layer is not what the target's head reads.
    """

    kind = EAGLE3
    head: EagleHead

    def __init__(self, shape: EagleShape, ingredients: Ingredients) -> None:
        super().__init__(ingredients, shape.tap_layers)
        check_last_tap(ingredients.target, shape.tap_layers)
        self.shape = shape
        target = str(ingredients.target)
        module: Any = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
        text, draft_ids = module.config.get_text_config(), ingredients.vocabulary.ids
        self.head = EagleHead(_config(text, shape, draft_ids))
        _inherit(self.head, module.get_decoder())

    @property
    def num_draft_tokens(self) -> int:
        """Tokens of a replayed draft."""
        return NUM_DRAFTED

    def loss(self, batch: Batch, generator: np.random.Generator) -> torch.Tensor:
        """Return the mean cross-entropy to the target's distribution, deeper steps weighing less.

        Index p of a row stands for the pair (hidden states at p, token at p + 1).
        """
        features = self.features(batch)
        drafting = Drafting.begin(self, batch, features)
        is_drafted = (
            batch.is_answer[:, 2:] & batch.is_answer[:, 1:-1]
        )  # what p says stands at p + 2
        places = is_drafted.nonzero(as_tuple=True)
        total = self._distance(drafting.out[:, :-1][places], features, places[0], places[1] + 1)
        anchors = self._draw_anchors(batch, generator)
        drafting.go_on_from(anchors)
        weight, weights = STEP_WEIGHT, 1.0
        for step in range(1, self.shape.num_steps):
            out = drafting.step()
            inside = has_answer(batch, anchors + 2 + step)
            rows, columns = inside.nonzero(as_tuple=True)
            said_at = anchors[rows, columns] + 1 + step
            total = total + weight * self._distance(out[inside], features, rows, said_at)
            weights, weight = weights + weight, weight * STEP_WEIGHT
        return total / weights

    def _distance(
        self, out: torch.Tensor, features: torch.Tensor, rows: torch.Tensor, places: torch.Tensor
    ) -> torch.Tensor:
        """Return the mean cross-entropy of outputs to what the target says at (row, place)."""
        reads = features[rows, places, -self.borrowed.hidden_size :]
        return distance(self.borrowed, self.head.norm(out), reads)

    def _draw_anchors(self, batch: Batch, generator: np.random.Generator) -> torch.Tensor:
        """Return indices whose next token is an answer's; [B, A]."""
        num_answer = batch.is_answer.sum(dim=1)
        count = max(1, round(float(num_answer.float().mean()) * self.shape.anchors_per_answer))
        drawn = torch.from_numpy(generator.random((len(num_answer), count))).to(num_answer.device)
        first = batch.is_answer.int().argmax(dim=1)
        last = (first + num_answer - 2).clamp(min=1)  # one token must follow
        span = (last - first + 1).clamp(min=1)
        return (first[:, None] + (drawn * span[:, None]).long() - 1).clamp(min=0)

    @torch.inference_mode()
    def agreements(self, batch: Batch) -> Iterator[np.ndarray]:
        """Yield for every answer of the batch which of its tokens a draft would say.

        Shapes: [answer tokens, NUM_DRAFTED] bool, as ``Replay.add`` takes it.
        """
        features = self.features(batch)
        drafting = Drafting.begin(self, batch, features)
        places = drafting_places(batch)
        drafting.go_on_from(places)
        said = []
        for step in range(NUM_DRAFTED):
            out = drafting.chosen if step == 0 else drafting.step()
            said.append(self.borrowed.first_choices(self.head.norm(out)))
        yield from agreeing(batch, places, torch.stack(said, dim=-1))


class Drafting:
    """A batch of rows on which a head drafts behind anchors.

    ``out`` [B, N, H]: what the head says at every index with the target's hidden states. After
    ``go_on_from``, every ``step`` drafts one token more behind each anchor.
    """

    out: torch.Tensor
    pair: Attending
    anchors: torch.Tensor
    chosen: torch.Tensor
    sees: torch.Tensor
    own: list[Attending]

    def __init__(self, recipe: EagleRecipe, batch: Batch) -> None:
        self.recipe, self.batch = recipe, batch
        self.head = recipe.head
        self.num_steps = 0

    @classmethod
    def begin(cls, recipe: EagleRecipe, batch: Batch, features: torch.Tensor) -> "Drafting":
        """Read the target's hidden states of a batch; features [B, L, W]."""
        self = cls(recipe, batch)
        feature = self.head.combine(features[:, :-1])
        embedded = recipe.borrowed.embed(batch.token_ids[:, 1:])
        positions = torch.arange(feature.shape[1], device=feature.device).expand(len(feature), -1)
        pair = self.head.begin(embedded, feature, positions)
        attended = F.scaled_dot_product_attention(
            pair.query.transpose(1, 2),
            pair.key.transpose(1, 2),
            pair.value.transpose(1, 2),
            is_causal=True,
            enable_gqa=True,
        ).transpose(1, 2)
        self.pair = pair
        self.out = self.head.end(pair.residual, attended)
        return self

    def go_on_from(self, anchors: torch.Tensor) -> None:
        """Choose the indices [B, A] behind which drafts go on."""
        self.anchors = anchors
        self.chosen = _rows(self.out, anchors)
        self.sees = torch.arange(self.out.shape[1], device=anchors.device) <= anchors[..., None]
        self.own = []

    def step(self) -> torch.Tensor:
        """Draft one token more, given that the one before was right; return outputs [B, A, H]."""
        self.num_steps += 1
        ids = self.batch.token_ids
        places = (self.anchors + 1 + self.num_steps).clamp(max=ids.shape[1] - 1)
        embedded = self.recipe.borrowed.embed(ids.gather(1, places))
        feature = self.head.feature_of(self.chosen, self.head.norm(self.chosen))
        pair = self.head.begin(embedded, feature, self.anchors + self.num_steps)
        self.own.append(pair)
        self.chosen = self.head.end(pair.residual, self._attend(pair))
        return self.chosen

    def _attend(self, pair: Attending) -> torch.Tensor:
        """Every draft sees the pairs up to its anchor, and its own behind."""
        groups = pair.query.shape[2] // pair.key.shape[2]
        batch, anchors, _, size = pair.query.shape
        query = pair.query.view(batch, anchors, -1, groups, size)  # [B, A, kv, G, D]
        scale = query.shape[-1] ** -0.5
        known = torch.einsum("bakgd,bnkd->bkgan", query, self.pair.key) * scale
        known = known.masked_fill(~self.sees[:, None, None], float("-inf"))
        own = [torch.einsum("bakgd,bakd->bkga", query, each.key) * scale for each in self.own]
        weights = torch.cat([known, torch.stack(own, dim=-1)], dim=-1).softmax(dim=-1)
        num_known = known.shape[-1]
        attended = torch.einsum("bkgan,bnkd->bakgd", weights[..., :num_known], self.pair.value)
        for index, each in enumerate(self.own):
            share = weights[..., num_known + index].permute(0, 3, 1, 2)[..., None]
            attended = attended + share * each.value[:, :, :, None]
        return attended.flatten(2, 3)


def _rows(x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Return x[b, indices[b]]; shapes [B, N, H], [B, A] to [B, A, H]."""
    return x.gather(1, indices[..., None].expand(-1, -1, x.shape[-1]))


def _undone_norm(body: Any) -> torch.Tensor:
    """Return what turns the last tap, normalised, into the residual stream that it was made of.

    The final norm's weight is divided out, and the size becomes that of what enters the last layer;
    with the weight left in, and at size 1, the inherited layer would have to be learned anew.
    Shapes: [H].
    """
    generator = torch.Generator().manual_seed(0)
    vocab_size = body.get_input_embeddings().weight.shape[0]
    ids = torch.randint(vocab_size, (1, NUM_SCALED), generator=generator)
    states = body(input_ids=ids, output_hidden_states=True, use_cache=False).hidden_states
    entering, read = states[-2][0, 1:], states[-1][0, 1:]  # of the first token some are outliers
    plain = read / _size(read) / body.norm.weight
    undone: torch.Tensor = _size(entering).median() / _size(plain).median() / body.norm.weight
    return undone


def _size(x: torch.Tensor) -> torch.Tensor:
    """Return the root mean square of each row; [N, H] to [N, 1]."""
    return x.square().mean(dim=-1, keepdim=True).sqrt()


def _config(target: Any, shape: EagleShape, draft_ids: torch.Tensor) -> EagleConfig:
    head_dim = getattr(target, "head_dim", None) or (
        target.hidden_size // target.num_attention_heads
    )
    return EagleConfig(
        hidden_size=target.hidden_size,
        intermediate_size=target.intermediate_size,
        num_attention_heads=target.num_attention_heads,
        num_key_value_heads=target.num_key_value_heads,
        head_dim=head_dim,
        target_hidden_size=target.hidden_size,
        vocab_size=target.vocab_size,
        tap_layers=shape.tap_layers,
        draft_ids=tuple(draft_ids.tolist()),
        rms_norm_eps=target.rms_norm_eps,
        max_position_embeddings=target.max_position_embeddings,
        rope=dict(target.rope_parameters),
        attention_bias=bool(getattr(target, "attention_bias", False)),
        fc_norm=True,
    )


def _inherit(head: EagleHead, body: Any) -> None:
    """Begin as the target's last layer, on a residual stream of the scale that it is used to."""
    last, layer = body.layers[-1], head.midlayer
    width = head.config.hidden_size
    with torch.no_grad():
        scale = _undone_norm(body)  # [H]
        deviation = FC_NOISE * float(scale.abs().median()) / head.fc.in_features**0.5
        torch.nn.init.normal_(head.fc.weight, std=deviation)
        head.fc.weight[:, -width:] += torch.diag(scale)
        for name in ("q_proj", "k_proj", "v_proj"):
            own, theirs = getattr(layer.self_attn, name), getattr(last.self_attn, name)
            own.weight[:, :width].mul_(0.5)
            own.weight[:, width:] = theirs.weight
            if own.bias is not None:
                own.bias.copy_(theirs.bias)
        layer.self_attn.o_proj.load_state_dict(last.self_attn.o_proj.state_dict())
        layer.mlp.load_state_dict(last.mlp.state_dict())
        layer.hidden_norm.weight.copy_(last.input_layernorm.weight)
        layer.post_attention_layernorm.weight.copy_(last.post_attention_layernorm.weight)
        head.norm.weight.copy_(body.norm.weight)
