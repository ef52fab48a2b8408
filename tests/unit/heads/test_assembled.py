"""From a trained head over its assembled folder into the drafter: the logits stay the same."""

import json

import pytest
import torch

from outrider.checkpoints.__main__ import main as checkpoints
from outrider.checkpoints.heads import HeadFile, assemble_head, save_head
from outrider.checkpoints.pretrained import is_assembled_from
from outrider.heads.layouts import is_head_folder, read_head_folder
from outrider.identity.weights import weights_digest
from outrider.training.batches import make_batch
from outrider.training.corpus import Example
from outrider.training.eagle import Drafting, EagleShape
from outrider.training.medusa import MedusaShape
from outrider.training.recipe import Ingredients
from outrider.training.redrafter import ReDrafterShape
from outrider.training.vocabulary import choose_vocabulary
from tests.toy import save_toy
from tests.unit.heads.published import drafted

SHAPES = {
    "eagle3": EagleShape((1, 2, 3)),
    "medusa": MedusaShape((3,), num_heads=3, num_layers=2),
    "redrafter": ReDrafterShape((3,), num_steps=3, state_size=48),
}


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return save_toy(tmp_path_factory.mktemp("target"), num_layers=3)


@pytest.fixture(
    scope="module", params=[(kind, size) for kind in SHAPES for size in (60, 0)], ids=str
)
def trained(request, target, tmp_path_factory):
    """A recipe with random weights, what it saves and what is assembled of it."""
    kind, size = request.param
    folder = tmp_path_factory.mktemp("run")
    examples = [Example((3, 400, 5), tuple(range(100, 130, 3)), True, False)]
    vocabulary = choose_vocabulary(examples, size=size, vocab_size=512)
    torch.manual_seed(2)
    recipe = SHAPES[kind].build(
        Ingredients(target, vocabulary, folder, folder / "features", torch.device("cpu"))
    )
    with torch.no_grad():
        for parameter in recipe.head.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.05)
    recipe.save(folder / "drafter", trained_for=weights_digest(target))
    return recipe, folder / "drafter", folder / "whole", make_batch(examples)


def test_trained_assembled_and_read_says_the_same(target, trained, capsys):
    recipe, saved, whole, batch = trained
    flags = ["--target", target, "--drafter", saved, "--out", whole]
    assert checkpoints(["assemble", *map(str, flags)]) == 0
    assert capsys.readouterr().out == f"{whole}\n"
    assert is_head_folder(whole)
    assert is_assembled_from(whole, saved)
    assert (whole / "tokenizer.json").read_bytes() == (target / "tokenizer.json").read_bytes()
    loaded = read_head_folder(whole)
    checked = read_head_folder(whole, target)
    assert checked.tap_layers == loaded.tap_layers == recipe.shape.tap_layers
    assert loaded.kind == recipe.kind
    assert loaded.target_weights_digest == weights_digest(target)
    assert torch.equal(loaded.draft_ids, recipe.borrowed.draft_ids)
    assert (loaded.vocab_size, loaded.target_hidden_size) == (512, 64)
    assert loaded.max_position_embeddings == 512
    assert loaded.module.config == recipe.head.config

    features = recipe.features(batch)
    said = {"eagle3": _eagle, "medusa": _medusa, "redrafter": _redrafter}[recipe.kind]
    with torch.inference_mode():
        expected = said(recipe.head, recipe.borrowed.embeddings, recipe.borrowed.weight, features)
        found = said(loaded.module, loaded.embeddings, loaded.lm_head, features)
    # Eight bits and bfloat16 lie between both.
    assert (found - expected).std() < 0.04 * expected.std()
    assert (found - expected).abs().max() < 0.25 * expected.std()
    assert not torch.equal(found, expected)

    stored = json.loads((whole / "config.json").read_text())
    assert set(stored["outrider_head"]) == {"kind", "target_weights_digest", "assembled_from"}
    assert checkpoints(["assemble", *map(str, flags)]) == 1
    assert "exists already" in capsys.readouterr().err


def _eagle(head, embeddings, lm_head, features):
    return drafted(head, embeddings, lm_head, features[0])


def _medusa(head, embeddings, lm_head, features):
    return head(features) @ lm_head.T


def _redrafter(head, embeddings, lm_head, features):
    state = head.start(embeddings[7])
    first = head.out(features[0, 2], state)
    second = head.out(features[0, 2], head.step(state, embeddings[9]))
    return torch.stack([first, second]) @ lm_head.T


def test_drafting_in_training_is_what_the_reader_drafts(target, trained):
    """The recipe's own code and the test's way to run a head agree, so that comparing with it
    means something."""
    recipe, _, _, batch = trained
    if recipe.kind != "eagle3":
        return
    features = recipe.features(batch)
    with torch.inference_mode():
        out = Drafting.begin(recipe, batch, features).out
        ids = batch.token_ids[0, 1:]
        embeddings = torch.zeros(512, 64)
        embeddings[torch.arange(len(ids)) * 7 % 512] = recipe.borrowed.embed(ids)
        logits = drafted(recipe.head, embeddings, recipe.borrowed.weight, features[0, :-1])
        expected = recipe.borrowed.logits(recipe.head.norm(out))[0]
    assert torch.allclose(logits[: len(ids)], expected, atol=1e-4)


def test_another_target_is_refused(trained, tmp_path):
    _, saved, _, _ = trained
    other = save_toy(tmp_path / "other", num_layers=3, seed=1)
    with pytest.raises(ValueError, match="was trained for a target with weights"):
        assemble_head(other, saved, tmp_path / "whole")
    assert not (tmp_path / "whole").exists()


def test_what_cannot_be_assembled_or_read_is_said(target, trained, tmp_path):
    _, saved, _, _ = trained
    assert is_head_folder(saved)
    with pytest.raises(ValueError, match="without their target; put both together with: python -m"):
        read_head_folder(saved)
    save_head(tmp_path, HeadFile("hydra", {}, weights_digest(target)), {"a": torch.ones(2)})
    with pytest.raises(ValueError, match="kind is 'hydra', not one of eagle3, medusa, redrafter"):
        assemble_head(target, tmp_path, tmp_path / "whole")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rnn": False}, "rnn is false: only the recurrent form is supported"),
        ({"exit_dim": 32}, "exit_dim must be hidden_size 64, not 32"),
        ({"state_size": 0}, "state_size is 0, expected a positive whole number"),
        ({"state_size": 40}, "expected [40, 40]"),
        ({"num_draft_layers": 3}, "missing tensors block.layers.2.bias"),
        ({"num_draft_layers": 1}, "unexpected tensors block.layers.1.bias"),
        ({"draft_vocab_size": 59}, "lm_head.weight is [60, 64], expected [59, 64]"),
        ({"tap_layers": [1, 3]}, "tap_layers is [1, 3], expected one layer"),
    ],
)
def test_a_wrong_recurrent_drafter_is_refused_by_name(target, tmp_path, change, message):
    vocabulary = choose_vocabulary([], size=60, vocab_size=512)
    recipe = SHAPES["redrafter"].build(
        Ingredients(target, vocabulary, tmp_path, tmp_path / "features", torch.device("cpu"))
    )
    recipe.save(tmp_path / "drafter", trained_for=weights_digest(target))
    whole = assemble_head(target, tmp_path / "drafter", tmp_path / "whole")
    path = whole / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the message holds brackets)
        read_head_folder(whole)
    assert message in str(caught.value)
    assert str(whole) in str(caught.value)
