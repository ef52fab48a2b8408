"""Training a small draft model for a small target, killed and resumed, saved and loaded."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from outrider.checkpoints.pretrained import assemble, read_config
from outrider.checkpoints.quantised import quantise
from outrider.engine import load_model
from outrider.training.batches import make_batch
from outrider.training.corpus import Example
from outrider.training.draft_model import DraftModel, DraftModelShape, MaskLayout
from outrider.training.run import RunOptions, finish_run
from outrider.training.trainer import RunMismatch, TrainSettings
from outrider.training.vocabulary import choose_vocabulary
from tests.toy import save_toy
from tests.unit.training.runs import train

LAYERS = (0, 3)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return save_toy(tmp_path_factory.mktemp("target"), num_layers=4)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Answers that count upwards, which is soon learned."""
    path = tmp_path_factory.mktemp("corpus") / "corpus.jsonl"
    rng = np.random.default_rng(0)
    with path.open("w") as file:
        for number in range(200):
            first = int(rng.integers(0, 60))
            ids = [*range(first, first + 12), 510]
            row = {"user": f"from {first} ({number})", "response_ids": ids, "temperature": 0}
            file.write(json.dumps(row) + "\n")
    return path


def options(target, corpus, folder, num_parallel=1, **changes) -> RunOptions:
    settings = TrainSettings(
        num_tokens=30_000, tokens_per_batch=500, learning_rate=3e-3, checkpoint_s=0.0
    )
    return RunOptions(
        target=target,
        corpus=(corpus,),
        folder=folder,
        shape=DraftModelShape(LAYERS, num_parallel=num_parallel, anchors_per_answer=0.5),
        draft_vocab_size=100,
        settings=replace(settings, **changes),
    )


@pytest.mark.timeout(180)  # seven seconds on an idle machine
@pytest.mark.parametrize("num_parallel", [1, 3])
def test_a_run_that_was_killed_and_resumed_ends_with_the_same_weights(
    target, corpus, tmp_path, num_parallel
):
    whole = train(options(target, corpus, tmp_path / "whole", num_parallel))
    broken = options(target, corpus, tmp_path / "broken", num_parallel)
    assert train(broken, stop_at=7) is None
    assert train(broken, stop_at=23) is None
    resumed = train(broken)
    first, second = (p.trainer.recipe.state_dict() for p in (whole, resumed))
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert whole.trainer.progress.measures == resumed.trainer.progress.measures
    assert whole.trainer.progress.losses == resumed.trainer.progress.losses

    last = whole.trainer.progress.measures[-1]
    assert last.mean_acceptance_length > 2.0, "counting was not learned"
    assert last.agreement > 0.8

    folder = finish_run(resumed, broken)
    card = json.loads((folder / "card.json").read_text())
    assert card["measures"][-1]["mean_acceptance_length"] == last.mean_acceptance_length
    assert card["corpus_digest"] == resumed.corpus.digest
    assert (folder / "training.png").stat().st_size > 1000
    assert "Mean" not in (folder / "README.md").read_text()[:1]


def test_another_run_in_the_same_folder_is_refused_by_what_differs(target, corpus, tmp_path):
    run = options(target, corpus, tmp_path)
    assert train(run, stop_at=2) is None
    other = replace(run, settings=replace(run.settings, seed=1), draft_vocab_size=90)
    with pytest.raises(RunMismatch, match=r"draft_vocab_size was 100, is 90.*seed was 0, is 1"):
        train(other)


@pytest.fixture(scope="module")
def trained(target, corpus, tmp_path_factory):
    run = options(target, corpus, tmp_path_factory.mktemp("run"), 3)
    prepared = train(run)
    return prepared, finish_run(prepared, run)


def test_an_assembled_model_says_what_the_trained_one_says(target, trained, tmp_path):
    prepared, folder = trained
    recipe = prepared.trainer.recipe
    whole = assemble(target, folder, tmp_path / "assembled")
    loaded = load_model(str(whole), dtype="float32")
    head = loaded.draft_head
    assert head.num_parallel == 3
    assert head.draft_ids == tuple(prepared.vocabulary.ids.tolist())
    assert head.mask_token_id == 512
    ids = list(prepared.corpus.held_out[0].prompt_ids)
    masked = torch.tensor([[*ids, head.mask_token_id, head.mask_token_id]])
    logits = loaded.module(masked, use_cache=False).logits[0, -3:]
    assert logits.shape == (3, 100)

    layout = MaskLayout.behind(torch.tensor([[len(ids) - 1]]), len(ids), 3)
    with torch.inference_mode():
        hidden = recipe._hidden(torch.tensor([ids]), layout)[0, -3:]
        expected = hidden @ recipe.head.T
    # Eight bits and bfloat16 lie between both.
    assert (logits - expected).abs().max() < 0.1 * expected.std()
    assert logits.argmax(-1).equal(expected.argmax(-1))


def test_weights_for_another_target_are_refused(trained, tmp_path):
    other = save_toy(tmp_path / "other", num_layers=4, seed=1)
    with pytest.raises(ValueError, match="was trained for a target with weights"):
        assemble(other, trained[1], tmp_path / "assembled")


def test_training_goes_on_from_saved_weights(target, corpus, trained, tmp_path):
    prepared, folder = trained
    run = replace(options(target, corpus, tmp_path, 3, num_tokens=500), start_from=folder)
    more = train(run)
    assert more.trainer.progress.losses[0] < prepared.trainer.progress.losses[0] / 2
    with pytest.raises(ValueError, match="keeps layers"):
        train(replace(run, shape=replace(run.shape, layers=(0, 1)), folder=tmp_path / "b"))


def test_a_folder_that_describes_no_drafter_is_named(tmp_path):
    (tmp_path / "drafter.json").write_text('{"layers": [1]}')
    with pytest.raises(ValueError, match="describes no drafter"):
        read_config(tmp_path)


def test_eight_bits_are_near():
    weight = torch.randn(30, 50) * torch.linspace(0.01, 3, 30)[:, None]
    values, scale = quantise(weight)
    error = (values.float() * scale[:, None] - weight).abs()
    assert (error <= scale[:, None] / 2 * 1.001).all()


def test_first_layers_stay_as_they_are_if_asked(target, corpus, tmp_path):
    run = options(target, corpus, tmp_path)
    frozen = train(replace(run, shape=replace(run.shape, num_frozen=1)))
    before = DraftModel(target, tmp_path / "cut", run.shape, frozen.vocabulary).state_dict()
    after = frozen.trainer.recipe.state_dict()
    kept = [name for name in before if before[name].equal(after[name])]
    assert {name for name in kept if "layers.0." in name} == {
        name for name in before if "layers.0." in name
    }
    assert not any("layers.1." in name for name in kept)


def test_masks_see_their_anchor_and_nothing_behind_it(target, tmp_path):
    """Other tokens behind an anchor, other anchors, more masks: nothing of it changes a mask."""
    examples = [Example((3, 4), (5, 6, 7, 8), True, False)]
    vocabulary = choose_vocabulary(examples, size=20, vocab_size=512)
    recipe = DraftModel(target, tmp_path / "cut", DraftModelShape(LAYERS, 3), vocabulary)
    torch.nn.init.normal_(recipe.mask_embedding, std=0.3)
    ids = torch.tensor([[3, 4, 5, 6, 7, 8]])
    with torch.inference_mode():
        both = recipe._hidden(ids, MaskLayout.behind(torch.tensor([[1, 3]]), 6, 3))[0]
        alone = recipe._hidden(ids[:, :2], MaskLayout.behind(torch.tensor([[1]]), 2, 3))[0]
        plain = recipe._hidden(ids)[0]
        assert torch.allclose(both[6:8], alone[2:], atol=1e-5)
        assert torch.allclose(both[:6], plain, atol=1e-5)
        changed = recipe._hidden(ids[:, :4], MaskLayout.behind(torch.tensor([[3]]), 4, 3))[0]
        assert torch.allclose(both[8:], changed[4:], atol=1e-5)


def test_labels_of_masks_are_the_tokens_that_follow():
    batch = make_batch(
        [Example((3, 4), (5, 6, 7, 8), True, False), Example((3,), (4, 5), True, False)]
    )
    shape = DraftModelShape(LAYERS, 3, anchors_per_answer=1.0)
    layout = MaskLayout.draw(batch, shape, np.random.default_rng(0))
    for row, answer in enumerate(((5, 6, 7, 8), (4, 5))):
        length = (6, 3)[row]
        ids = batch.token_ids[row].tolist()
        for at in range(layout.positions.shape[1]):
            position = int(layout.positions[row, at])
            follows = position + 1 < length and position + 1 >= length - len(answer)
            assert bool(layout.has_label[row, at]) == follows
            if follows:
                assert int(layout.labels[row, at]) == ids[position + 1]
