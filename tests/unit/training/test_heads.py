"""Training draft heads for a small target: resumed, replayed, saved and loaded."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from outrider.training.batches import make_batch
from outrider.training.corpus import Example
from outrider.training.eagle import EagleShape
from outrider.training.medusa import MedusaShape
from outrider.training.recipe import Ingredients
from outrider.training.redrafter import ReDrafterShape
from outrider.training.run import RunOptions, finish_run
from outrider.training.trainer import TrainSettings
from outrider.training.vocabulary import choose_vocabulary
from tests.toy import save_toy
from tests.unit.training.runs import train

NUM_LAYERS = 3
SHAPES = {
    "eagle3": EagleShape((1, 2, 3), num_steps=3),
    "medusa": MedusaShape((3,), num_heads=3, num_layers=2),
    "redrafter": ReDrafterShape((3,), num_steps=3, state_size=48),
}
KINDS = list(SHAPES)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    """Logits wide enough that the target has opinions."""
    return save_toy(tmp_path_factory.mktemp("target"), num_layers=NUM_LAYERS, scale=0.2)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    rng = np.random.default_rng(0)
    with path.open("w") as file:
        for number in range(100):
            first = int(rng.integers(0, 20))
            ids = [*range(first, first + 9), 510]
            row = {"user": f"from {first} ({number})", "response_ids": ids, "temperature": 0}
            file.write(json.dumps(row) + "\n")
    return path


@pytest.fixture(scope="module")
def features(tmp_path_factory):
    """Hidden states that runs share, a folder for each set of layers."""
    return tmp_path_factory.mktemp("features")


def options(target, corpus, folder, features, kind, **changes) -> RunOptions:
    settings = TrainSettings(
        num_tokens=16_000, tokens_per_batch=400, learning_rate=4e-3, checkpoint_s=0.0
    )
    shape = SHAPES[kind]
    return RunOptions(
        target=target,
        corpus=(corpus,),
        folder=folder,
        shape=shape,
        draft_vocab_size=64,
        settings=replace(settings, **changes),
        features=features / "-".join(map(str, shape.tap_layers)),
    )


@pytest.mark.timeout(180)  # five seconds on an idle machine
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_that_was_killed_and_resumed_ends_with_the_same_weights(
    target, corpus, features, tmp_path, kind
):
    whole = train(options(target, corpus, tmp_path / "whole", features, kind))
    broken = options(target, corpus, tmp_path / "broken", features, kind)
    assert train(broken, stop_at=5) is None
    assert train(broken, stop_at=14) is None
    resumed = train(broken)
    first, second = (p.trainer.recipe.state_dict() for p in (whole, resumed))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert whole.trainer.progress.losses == resumed.trainer.progress.losses
    assert whole.trainer.progress.measures == resumed.trainer.progress.measures

    losses = whole.trainer.progress.losses
    assert sum(losses[-5:]) < 0.9 * sum(losses[:5]), "nothing was learned"

    folder = finish_run(resumed, broken)
    assert json.loads((folder / "drafter.json").read_text())["kind"] == kind
    assert json.loads((folder / "card.json").read_text())["kind"] == kind

    fresh = SHAPES[kind].build(_ingredients(target, whole.vocabulary, tmp_path, features, kind))
    fresh.load(folder)
    for name, value in fresh.head.state_dict().items():
        trained = resumed.trainer.recipe.head.state_dict()[name]
        # Eight bits: half a step of the row's scale.
        step = trained.abs().amax(dim=-1, keepdim=True) / 127 if trained.dim() == 2 else 0.0
        assert ((value - trained).abs() <= 0.51 * step + 1e-7).all(), name

    other = KINDS[KINDS.index(kind) - 1]
    wrong = SHAPES[other].build(_ingredients(target, whole.vocabulary, tmp_path, features, other))
    with pytest.raises(ValueError, match=f"a head of kind {kind}, not {other}"):
        wrong.load(folder)


def _ingredients(target, vocabulary, folder, features, kind) -> Ingredients:
    place = features / "-".join(map(str, SHAPES[kind].tap_layers))
    return Ingredients(target, vocabulary, folder, place, torch.device("cpu"))


@pytest.mark.parametrize("kind", KINDS)
def test_the_last_tap_must_be_what_the_targets_head_reads(target, tmp_path, kind):
    vocabulary = choose_vocabulary([], size=0, vocab_size=512)
    shape = replace(SHAPES[kind], tap_layers=(1,))
    with pytest.raises(ValueError, match="must be 3, what the target's head reads, not 1"):
        shape.build(Ingredients(target, vocabulary, tmp_path, tmp_path, torch.device("cpu")))


@pytest.fixture(scope="module")
def examples():
    """Answers of four ids in no order, so that about a quarter of all guesses is right."""
    rng = np.random.default_rng(1)

    def some(count):
        return tuple(int(each) for each in rng.choice([7, 40, 41, 300], count))

    sizes = [(4, 9), (3, 5), (6, 2), (2, 11)]
    return [Example(some(prompt), some(answer), True, False) for prompt, answer in sizes]


def shaken(target, examples, tmp_path, kind):
    """A head of random weights that may propose just the ids of the examples."""
    vocabulary = choose_vocabulary(examples, size=4, vocab_size=512)
    place = Ingredients(target, vocabulary, tmp_path, tmp_path / "features", torch.device("cpu"))
    torch.manual_seed(3)
    recipe = SHAPES[kind].build(place)
    with torch.no_grad():
        for parameter in recipe.head.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return recipe


@pytest.mark.parametrize("kind", KINDS)
def test_agreements_are_those_of_drafting_step_by_step(target, examples, tmp_path, kind):
    recipe = shaken(target, examples, tmp_path, kind)
    batch = make_batch(examples)
    said = {"eagle3": said_by_eagle, "medusa": said_by_medusa, "redrafter": said_by_redrafter}
    features = recipe.features(batch)
    num_right = num_guesses = 0
    with torch.inference_mode():
        for row, (example, table) in enumerate(
            zip(examples, recipe.agreements(batch), strict=True)
        ):
            ids = example.prompt_ids + example.response_ids
            expected = np.zeros((len(example.response_ids), recipe.num_draft_tokens), np.bool_)
            for index in range(len(example.response_ids)):
                place = len(example.prompt_ids) + index
                hidden = features[row, : place - 1]
                for depth in range(min(recipe.num_draft_tokens, len(ids) - place)):
                    token = said[kind](recipe, hidden, ids[: place + depth], depth)
                    expected[index, depth] = token == ids[place + depth]
            assert np.array_equal(table, expected)
            num_right, num_guesses = num_right + expected.sum(), num_guesses + expected.size
    assert 0.1 * num_guesses < num_right < 0.6 * num_guesses, "a test of nothing"


def said_by_medusa(recipe, hidden, ids, depth):
    x = hidden[-1]
    for layer in recipe.head.blocks[depth].layers:
        x = x + torch.nn.functional.silu(layer.weight @ x + layer.bias)
    return int(recipe.borrowed.draft_ids[(recipe.borrowed.weight @ x).argmax()])


def said_by_redrafter(recipe, hidden, ids, depth):
    head, tokens = recipe.head, ids[len(hidden) :]
    assert len(tokens) == depth + 1
    state = head.start(recipe.borrowed.embeddings[tokens[0]])
    for token in tokens[1:]:
        state = head.step(state, recipe.borrowed.embeddings[token])
    out = head.out(hidden[-1], state)
    return int(recipe.borrowed.draft_ids[(recipe.borrowed.weight @ out).argmax()])


def said_by_eagle(recipe, hidden, ids, depth):
    """One pair after the other: the target's hidden states, then the head's own outputs."""
    head = recipe.head
    keys, values, out = [], [], None
    for position, token in enumerate(ids[1:]):
        if position < len(hidden):
            feature = head.combine(hidden[position])
        else:
            feature = head.feature_of(out, head.norm(out))
        embedded = recipe.borrowed.embed(torch.tensor(token))
        pair = head.begin(embedded[None, None], feature[None, None], torch.tensor([[position]]))
        keys.append(pair.key[0, 0])
        values.append(pair.value[0, 0])
        query, groups = pair.query[0, 0], len(pair.query[0, 0]) // len(pair.key[0, 0])
        attended = []
        for number, one in enumerate(query):
            scores = torch.stack([key[number // groups] @ one for key in keys])
            weights = (scores / math.sqrt(len(one))).softmax(dim=0)
            rows = torch.stack([value[number // groups] for value in values])
            attended.append(weights @ rows)
        out = head.end(pair.residual[0, 0], torch.stack(attended))
    assert len(ids) - 1 - len(hidden) == depth
    logits = recipe.borrowed.weight @ head.norm(out)
    return int(recipe.borrowed.draft_ids[logits.argmax()])


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_counts_answers_only(target, examples, tmp_path, kind):
    """Padding teaches nothing: the loss of two examples lies between those of each alone."""
    recipe = shaken(target, examples, tmp_path, kind)
    if kind == "eagle3":  # where further steps go on is drawn for all rows at once
        recipe.shape = replace(recipe.shape, num_steps=1)
    batches = [[examples[0]], [examples[3]], [examples[0], examples[3]]]
    with torch.no_grad():
        alone, apart, together = (
            float(recipe.loss(make_batch(each), np.random.default_rng(0))) for each in batches
        )
    low, high = sorted([alone, apart])
    assert low - 1e-4 <= together <= high + 1e-4
