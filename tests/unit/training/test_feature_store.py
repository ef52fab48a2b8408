"""Hidden states of a target, kept in a folder."""

import pytest
import torch
from transformers import AutoModelForCausalLM

from outrider.training.corpus import Example
from outrider.training.features import FeatureStore
from outrider.training.trainer import RunMismatch
from tests.toy import save_toy

EXAMPLES = [
    Example((3, 4, 5), (6, 7), True, False),
    Example((9,), (8, 7, 6, 5, 4, 3), True, False),
    Example((1, 2), (3,), False, False),
]
LAYERS = (0, 2, 3)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return save_toy(tmp_path_factory.mktemp("target"), num_layers=3)


def test_rows_are_the_hidden_states_that_transformers_gives(target, tmp_path):
    store = FeatureStore(target, LAYERS, tmp_path)
    rows = store.of(EXAMPLES)
    assert (rows.shape, rows.dtype) == ((3, 7, store.width), torch.bfloat16)
    assert torch.equal(rows, store.of(EXAMPLES)), "what is kept is what was computed"
    module = AutoModelForCausalLM.from_pretrained(str(target), dtype=torch.float32)
    for row, each in zip(rows, EXAMPLES, strict=True):
        ids = torch.tensor([each.prompt_ids + each.response_ids])
        with torch.inference_mode():
            states = module(ids, output_hidden_states=True).hidden_states
        expected = torch.cat([states[layer][0] for layer in LAYERS], dim=-1)
        assert torch.allclose(row[: len(each)].float(), expected, rtol=2**-8, atol=1e-4)
        assert not row[len(each) :].any()


@pytest.mark.parametrize(("rows_cut", "index_cut"), [(0, 5), (3, 32), (300, 32)])
def test_a_store_that_was_cut_in_the_middle_of_a_write_goes_on(
    target, tmp_path, rows_cut, index_cut
):
    """The rows come first: what the index does not name, or names in half, is computed again."""
    expected = FeatureStore(target, LAYERS, tmp_path).of(EXAMPLES)
    for name, cut in (("features.bf16", rows_cut), ("features.index", index_cut)):
        path = tmp_path / name
        path.write_bytes(path.read_bytes()[: path.stat().st_size - cut])
    again = FeatureStore(target, LAYERS, tmp_path)
    assert torch.equal(again.of(EXAMPLES), expected)
    assert torch.equal(FeatureStore(target, LAYERS, tmp_path).of(EXAMPLES), expected)


def test_a_store_of_other_layers_or_another_target_is_refused(target, tmp_path):
    FeatureStore(target, LAYERS, tmp_path / "store")
    with pytest.raises(RunMismatch, match=r"layers was \[0, 2, 3\], is \[1, 2, 3\]"):
        FeatureStore(target, (1, 2, 3), tmp_path / "store")
    other = save_toy(tmp_path / "other", num_layers=3, seed=1)
    with pytest.raises(RunMismatch, match="target_weights_digest was"):
        FeatureStore(other, LAYERS, tmp_path / "store")


@pytest.mark.parametrize("layers", [(), (4,), (-1, 3)])
def test_layers_that_do_not_exist_are_named(target, tmp_path, layers):
    with pytest.raises(ValueError, match="hidden states enter layers 0 to 3"):
        FeatureStore(target, layers, tmp_path)


def test_a_store_serves_runs_that_read_some_of_its_layers(target, tmp_path):
    whole = FeatureStore(target, LAYERS, tmp_path)
    expected = whole.of(EXAMPLES[:2])
    some = FeatureStore(target, (3, 0), tmp_path)
    width = expected.shape[-1] // 3
    swapped = torch.cat([expected[..., 2 * width :], expected[..., :width]], dim=-1)
    assert torch.equal(some.of(EXAMPLES[:2]), swapped)
    some.of(EXAMPLES)
    assert torch.equal(FeatureStore(target, LAYERS, tmp_path).of(EXAMPLES[:2]), expected)
