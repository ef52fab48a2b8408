"""Medusa checkpoints of its authors and in vLLM's form: what loads, and what is refused."""

import json
import re

import pytest
import torch

from outrider.heads.layouts import is_head_folder, read_head_folder
from tests.toy import save_toy
from tests.unit.heads.published import HIDDEN, NUM_LAYERS, VOCAB, write

NUM_HEADS = 3


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return save_toy(tmp_path_factory.mktemp("target"), num_layers=NUM_LAYERS)


def authors_tensors(num_layers: int = 2) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    tensors = {}
    for head in range(NUM_HEADS):
        for layer in range(num_layers):
            weight = torch.randn(HIDDEN, HIDDEN, generator=generator) * 0.1
            tensors[f"{head}.{layer}.linear.weight"] = weight
            tensors[f"{head}.{layer}.linear.bias"] = torch.randn(HIDDEN, generator=generator)
        rows = torch.randn(VOCAB, HIDDEN, generator=generator)
        tensors[f"{head}.{num_layers}.weight"] = rows
    return tensors


def logits_of(tensors, hidden, num_layers: int = 2) -> torch.Tensor:
    """As the authors compute them."""
    out = []
    for head in range(NUM_HEADS):
        x = hidden
        for layer in range(num_layers):
            name = f"{head}.{layer}.linear"
            x = x + torch.nn.SiLU()(x @ tensors[f"{name}.weight"].T + tensors[f"{name}.bias"])
        out.append(x @ tensors[f"{head}.{num_layers}.weight"].T)
    return torch.stack(out, dim=-2)


def found_logits(loaded, hidden) -> torch.Tensor:
    with torch.inference_mode():
        out = loaded.module(hidden)
    if loaded.lm_head.dim() == 2:
        return out @ loaded.lm_head.T
    return torch.einsum("...ih,idh->...id", out, loaded.lm_head)


def hidden_states() -> torch.Tensor:
    return torch.randn(4, HIDDEN, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("prefix", ["", "medusa_head."])
def test_the_authors_heads_load_whatever_their_configuration_counts(tmp_path, target, prefix):
    config = {"base_model_name_or_path": "x", "medusa_num_heads": 2, "medusa_num_layers": 1}
    (tmp_path / "config.json").write_text(json.dumps(config))
    tensors = authors_tensors()
    torch.save({prefix + k: v for k, v in tensors.items()}, tmp_path / "medusa_lm_head.pt")
    assert is_head_folder(tmp_path)
    loaded = read_head_folder(tmp_path, target)
    assert loaded.kind == "medusa"
    assert loaded.embeddings is None
    assert (loaded.module.config.num_heads, loaded.module.config.num_layers) == (NUM_HEADS, 2)
    assert loaded.lm_head.shape == (NUM_HEADS, VOCAB, HIDDEN)
    assert loaded.draft_ids.tolist() == list(range(VOCAB))
    assert (loaded.tap_layers, loaded.target_hidden_size) == ((NUM_LAYERS,), HIDDEN)
    assert loaded.max_position_embeddings == 512
    hidden = hidden_states()
    expected = logits_of(tensors, hidden)
    assert torch.allclose(found_logits(loaded, hidden), expected, atol=1e-4)


def vllm(tmp_path, *, ids=None, shared=False, whole=True, bias=True, **config):
    """The same heads in vLLM's form, with ``ids`` as a truncated vocabulary."""
    tensors = {}
    for name, value in authors_tensors().items():
        head, layer, *rest = name.split(".")
        if rest[0] == "linear":
            if bias or rest[1] == "weight":
                tensors[f"blocks.{head}.layers.{layer}.{rest[1]}"] = value
        elif head == "0" or not shared:
            tensors[f"lm_heads.{head}.weight"] = value if whole or ids is None else value[ids]
    if ids is not None:
        tensors["token_map"] = torch.tensor(ids)
    stated = {
        "model_type": "medusa",
        "architectures": ["MedusaModel"],
        "num_heads": NUM_HEADS,
        "num_hidden_layers": 2,
        "hidden_size": HIDDEN,
        "vocab_size": VOCAB,
        "truncated_vocab_size": VOCAB if ids is None else len(ids),
        "original_lm_head": shared,
        **config,
    }
    return write(tmp_path, stated, tensors)


@pytest.mark.parametrize("ids", [None, [300, 7, 411, 12]])
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("whole", [False, True])
def test_vllms_form_loads(tmp_path, target, ids, shared, whole):
    loaded = read_head_folder(vllm(tmp_path, ids=ids, shared=shared, whole=whole), target)
    tensors, hidden = authors_tensors(), hidden_states()
    if shared:
        for head in range(NUM_HEADS):
            tensors[f"{head}.2.weight"] = tensors["0.2.weight"]
    expected = logits_of(tensors, hidden)[..., sorted(ids) if ids else slice(None)]
    assert loaded.draft_ids.tolist() == (sorted(ids) if ids else list(range(VOCAB)))
    assert loaded.lm_head.dim() == (2 if shared else 3)
    assert torch.allclose(found_logits(loaded, hidden), expected, atol=1e-4)


def test_heads_without_biases_and_without_logits_take_the_targets(tmp_path, target):
    from transformers import AutoModelForCausalLM

    folder = vllm(tmp_path, bias=False)
    tensors = {k: v for k, v in authors_tensors().items() if k.endswith("linear.weight")}
    named = {
        re.sub(r"^(\d)\.(\d)\.linear", r"blocks.\1.layers.\2", k): v for k, v in tensors.items()
    }
    config = json.loads((folder / "config.json").read_text())
    loaded = read_head_folder(write(folder, config, named), target)
    assert not loaded.module.config.bias
    module = AutoModelForCausalLM.from_pretrained(str(target), dtype=torch.float32)
    assert torch.equal(loaded.lm_head, module.get_output_embeddings().weight)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": 65}, "blocks.0.layers.0.weight is of width 64, expected hidden_size 65"),
        ({"vocab_size": 500}, "truncated_vocab_size is 512, expected <= 500"),
        (
            {"vocab_size": 600, "truncated_vocab_size": 600},
            "lm_heads.0.weight has 512 rows, expected 600",
        ),
        ({"tap_layers": [2]}, "tap_layers is [2], expected [4]"),
        ({"posterior_alpha": 0.3}, "posterior_alpha is 0.3, which accepts tokens"),
        ({"original_lm_head": True}, "unexpected tensors lm_heads.1.weight, lm_heads.2.weight"),
        ({"truncated_vocab_size": 100}, "missing tensors token_map"),
    ],
)
def test_a_wrong_configuration_is_refused_by_its_key(tmp_path, target, change, message):
    folder = vllm(tmp_path, **change)
    with pytest.raises(ValueError, match=re.escape(message)):
        read_head_folder(folder, target)


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([3, 600], "token_map gives row 1 the target id 600, expected 0 to 511"),
        ([3, 3], "token_map gives several rows the target id 3"),
    ],
)
def test_a_wrong_map_is_refused(tmp_path, target, ids, message):
    with pytest.raises(ValueError, match=message):
        read_head_folder(vllm(tmp_path, ids=ids, whole=True), target)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.pop("1.0.linear.weight"), "missing tensors blocks.1.layers.0.weight"),
        (lambda t: t.pop("1.1.linear.bias"), "missing tensors blocks.1.layers.1.bias"),
        (lambda t: t.pop("2.2.weight"), "missing tensors lm_heads.2.weight"),
        (lambda t: t.update({"1.2.weight": torch.zeros(3, HIDDEN)}), "rows, expected the same"),
        (lambda t: t.update({"extra": torch.zeros(3)}), "unexpected tensors extra"),
        (
            lambda t: t.update({"0.1.linear.weight": torch.zeros(3, HIDDEN)}),
            "blocks.0.layers.1.weight is [3, 64], expected [64, 64]",
        ),
        (lambda t: t.clear(), "missing tensors blocks.0.layers.0.weight"),
    ],
)
def test_wrong_tensors_are_refused_by_name(tmp_path, target, change, message):
    tensors = authors_tensors()
    change(tensors)
    torch.save(tensors, tmp_path / "medusa_lm_head.pt")
    with pytest.raises(ValueError, match=re.escape(message)):
        read_head_folder(tmp_path, target)


def test_without_a_target_nobody_knows_the_layer(tmp_path):
    torch.save(authors_tensors(), tmp_path / "medusa_lm_head.pt")
    with pytest.raises(ValueError, match="states no tap_layers: name the folder of its target"):
        read_head_folder(tmp_path)


def test_heads_for_another_target_are_refused(tmp_path):
    torch.save(authors_tensors(), tmp_path / "medusa_lm_head.pt")
    wide = save_toy(tmp_path / "wide", hidden_size=32)
    with pytest.raises(ValueError, match="is for a target of hidden_size 64, but"):
        read_head_folder(tmp_path, wide)
