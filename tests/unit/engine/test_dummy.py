"""Weights that are drawn instead of loaded."""

from pathlib import Path

import torch

from bench.shapes import Shape, write_model
from outrider.engine import LoadedModel, load_model

SHAPE = Shape(8, 64, 128, 4, 2, 512, 128)


def drawn(folder: Path, seed: int) -> LoadedModel:
    return load_model(str(folder), dtype="float32", load_format="dummy", seed=seed)


def test_the_seed_decides_and_the_global_generator_is_left_alone(tmp_path: Path) -> None:
    folder = write_model(tmp_path / "model", SHAPE)
    before = torch.random.get_rng_state()
    one, again, other = drawn(folder, 0), drawn(folder, 0), drawn(folder, 1)
    assert torch.equal(before, torch.random.get_rng_state())
    for name, value in one.module.state_dict().items():
        assert torch.equal(value, again.module.state_dict()[name])
    head = "lm_head.weight"
    assert not torch.equal(one.module.state_dict()[head], other.module.state_dict()[head])


def test_rotary_frequencies_are_computed_not_drawn(tmp_path: Path) -> None:
    module = drawn(write_model(tmp_path / "model", SHAPE), 0).module
    found = dict(module.named_buffers())["model.rotary_emb.inv_freq"]
    steps = torch.arange(0, 16, 2, dtype=torch.float32) / 16
    assert torch.allclose(found, 500_000.0**-steps)


@torch.no_grad()
def test_logits_depend_on_the_token_and_on_what_came_before(tmp_path: Path) -> None:
    module = drawn(write_model(tmp_path / "model", SHAPE), 0).module
    ids = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 4], [1, 2, 3, 8]])
    logits = module(ids).logits[:, -1]  # [3, V]
    assert 0.5 < float(logits.std()) < 3
    context, token = (float(torch.corrcoef(logits[[0, i]])[0, 1]) for i in (1, 2))
    assert token < 0.5
    assert 0.3 < context < 0.97
