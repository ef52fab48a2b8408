"""EAGLE-3 checkpoints in both published forms: what loads, and what is refused by name."""

import json
import re

import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from outrider.heads.layouts import is_head_folder, read_head_folder
from tests.toy import save_toy
from tests.unit.heads.published import (
    EAGLE,
    HIDDEN,
    NUM_LAYERS,
    THETA,
    VOCAB,
    drafted,
    eagle,
    eagle_config,
    eagle_tensors,
    speculators_config,
    write,
)


@pytest.fixture(scope="module")
def target(tmp_path_factory):
    return save_toy(tmp_path_factory.mktemp("target"), num_layers=NUM_LAYERS, hidden_size=HIDDEN)


def features(width: int = 3 * HIDDEN) -> torch.Tensor:
    return torch.randn(9, width, generator=torch.Generator().manual_seed(7))


VARIANTS = [
    {},
    {"norm_before_residual": True},
    {"norm_before_fc": True},
    {"fc_norm": True, "norm_output": True},
    {"attention_bias": True},
    {"target_hidden_size": 40, "tap_layers": (0, 3)},
    {"num_key_value_heads": 4, "head_dim": 24},
]


@pytest.mark.parametrize("changes", VARIANTS, ids=str)
@pytest.mark.parametrize("form", ["authors", "speculators"])
def test_a_published_head_computes_what_it_was_made_from(tmp_path, changes, form):
    head = eagle(**changes)
    config, tensors = eagle_config(head), eagle_tensors(head)
    if form == "speculators":
        config = speculators_config(head)
        tensors = {name.replace("midlayer.", "layers.0."): v for name, v in tensors.items()}
    folder = write(tmp_path, config, tensors)
    assert is_head_folder(folder)
    loaded = read_head_folder(folder)
    assert loaded.kind == "eagle3"
    assert loaded.tap_layers == head.config.tap_layers
    assert loaded.target_hidden_size == head.config.target_hidden_size
    assert (loaded.vocab_size, loaded.max_position_embeddings) == (VOCAB, 256)
    assert loaded.draft_ids.tolist() == list(EAGLE.draft_ids)
    assert loaded.target_weights_digest == ""
    assert not any(each.requires_grad for each in loaded.module.parameters())
    given = features(head.config.feature_size)
    expected = drafted(head, tensors["embed_tokens.weight"], tensors["lm_head.weight"], given)
    found = drafted(loaded.module, loaded.embeddings, loaded.lm_head, given)
    assert torch.equal(found, expected)


def test_files_of_torchs_own_and_a_bias_of_the_output_load(tmp_path):
    """As heads of Llama's form with attention_bias are saved, with names under ``model.``."""
    head = eagle(attention_bias=True)
    tensors = eagle_tensors(head)
    bias = torch.randn(HIDDEN)
    layer = {f"model.{k.replace('midlayer', 'layers.0')}": v for k, v in tensors.items()}
    layer["model.layers.0.self_attn.o_proj.bias"] = bias
    layer["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(8)
    (tmp_path / "config.json").write_text(json.dumps(eagle_config(head)))
    torch.save(layer, tmp_path / "pytorch_model.bin")
    loaded = read_head_folder(tmp_path)
    attention = head.midlayer.self_attn
    attention.o_proj.bias = torch.nn.Parameter(bias)
    expected = drafted(head, tensors["embed_tokens.weight"], tensors["lm_head.weight"], features())
    found = drafted(loaded.module, loaded.embeddings, loaded.lm_head, features())
    assert torch.equal(found, expected)


def test_rows_in_another_order_are_put_in_order(tmp_path):
    head = eagle()
    tensors = eagle_tensors(head)
    order = torch.randperm(len(EAGLE.draft_ids), generator=torch.Generator().manual_seed(8))
    ids = torch.tensor(EAGLE.draft_ids)[order]
    shuffled = {
        **tensors,
        "d2t": (ids - torch.arange(len(ids))).int(),
        "lm_head.weight": tensors["lm_head.weight"][order],
    }
    loaded = read_head_folder(write(tmp_path, eagle_config(head), shuffled))
    assert loaded.draft_ids.tolist() == list(EAGLE.draft_ids)
    assert torch.equal(loaded.lm_head, tensors["lm_head.weight"])


def test_a_head_over_the_whole_vocabulary_needs_no_table(tmp_path):
    head = eagle(draft_ids=tuple(range(VOCAB)))
    tensors = {k: v for k, v in eagle_tensors(head).items() if k not in ("d2t", "t2d")}
    config = {k: v for k, v in eagle_config(head).items() if k != "draft_vocab_size"}
    loaded = read_head_folder(write(tmp_path, config, tensors))
    assert loaded.draft_ids.tolist() == list(range(VOCAB))


def test_the_target_lends_what_a_checkpoint_leaves_out(tmp_path, target):
    from transformers import AutoModelForCausalLM

    head = eagle(tap_layers=(2, 1, 3))
    absent = ("embed_tokens.weight", "lm_head.weight", "t2d")
    tensors = {k: v for k, v in eagle_tensors(head).items() if k not in absent}
    config = {k: v for k, v in eagle_config(head).items() if k != "rope_theta"}
    loaded = read_head_folder(write(tmp_path, config, tensors), target)
    module = AutoModelForCausalLM.from_pretrained(str(target), dtype=torch.float32)
    assert torch.equal(loaded.embeddings, module.get_input_embeddings().weight)
    rows = module.get_output_embeddings().weight[list(EAGLE.draft_ids)]
    assert torch.equal(loaded.lm_head, rows)
    assert loaded.module.config.rope["rope_theta"] == THETA


@pytest.mark.parametrize(("num_layers", "taps"), [(6, (2, 3, 3)), (8, (2, 4, 5))])
def test_layers_that_are_not_named_are_the_authors(tmp_path, num_layers, taps):
    other = save_toy(tmp_path / "target", num_layers=num_layers, hidden_size=HIDDEN)
    head = eagle()
    config = {k: v for k, v in eagle_config(head).items() if k != "eagle_config"}
    folder = write(tmp_path / "head", config, eagle_tensors(head))
    if len(set(taps)) < 3:
        with pytest.raises(ValueError, match="expected different layers"):
            read_head_folder(folder, other)
    else:
        assert read_head_folder(folder, other).tap_layers == taps
    with pytest.raises(ValueError, match="states no eagle_aux_hidden_state_layer_ids: name the"):
        read_head_folder(folder)


ROPES = [
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "dynamic", "factor": 2.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    },
]


@pytest.mark.parametrize("rope", ROPES, ids=lambda rope: rope["rope_type"])
@pytest.mark.parametrize("form", ["rope_scaling", "type", "rope_parameters"])
def test_rotary_settings_are_those_of_transformers(tmp_path, rope, form):
    head = eagle(rope={**rope, "rope_theta": 500000.0})
    config = eagle_config(head)
    if form == "type":
        scaling = config["rope_scaling"]
        scaling["type"] = scaling.pop("rope_type")
    if form == "rope_parameters":
        config["rope_parameters"] = {
            **config.pop("rope_scaling"),
            "rope_theta": config.pop("rope_theta"),
        }
    loaded = read_head_folder(write(tmp_path, config, eagle_tensors(head)))
    expected = LlamaRotaryEmbedding(
        LlamaConfig(
            hidden_size=HIDDEN,
            num_attention_heads=4,
            head_dim=16,
            max_position_embeddings=256,
            rope_parameters={**rope, "rope_theta": 500000.0},
        )
    )
    positions = torch.arange(250)[None]
    for one, other in zip(
        loaded.module.rope(torch.zeros(1), positions),
        expected(torch.zeros(1), positions),
        strict=True,
    ):
        assert torch.equal(one, other)


def test_frequencies_stay_exact_in_bfloat16(tmp_path):
    head = eagle()
    folder = write(tmp_path, eagle_config(head), eagle_tensors(head))
    loaded = read_head_folder(folder, dtype=torch.bfloat16)
    assert loaded.module.fc.weight.dtype == loaded.lm_head.dtype == torch.bfloat16
    assert torch.equal(loaded.module.rope.inv_freq, head.rope.inv_freq)


def refuses(folder, message, target=None):
    with pytest.raises(ValueError, match=re.escape(message)) as caught:
        read_head_folder(folder, target)
    assert str(folder) in str(caught.value), "which folder?"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu', expected 'silu'"),
        ({"num_hidden_layers": 2}, "num_hidden_layers is 2, expected 1"),
        ({"mlp_bias": True}, "mlp_bias is True, expected False"),
        ({"logit_scale": 0.5}, "logit_scale is 0.5, expected 1.0"),
        ({"sliding_window": 512}, "sliding_window is 512, expected none"),
        ({"quantization_config": {"a": 1}}, "quantization_config is"),
        ({"eagle_config": {"use_aux_hidden_state": False}}, "use_aux_hidden_state is False"),
        ({"hidden_size": "64"}, "hidden_size is '64', expected a positive whole number"),
        ({"vocab_size": None}, "vocab_size is missing, expected a positive whole number"),
        ({"intermediate_size": 80}, "is [96, 64], expected [80, 64]"),
        ({"vocab_size": 400}, "embed_tokens.weight is [512, 64], expected [400, 64]"),
        ({"draft_vocab_size": 49}, "lm_head.weight is [50, 64], expected [49, 64]"),
        ({"fc_norm": True}, "missing tensors fc_norm.0.weight, fc_norm.1.weight"),
        ({"attention_bias": True}, "missing tensors midlayer.self_attn.k_proj.bias"),
        ({"norm_output": 1}, "norm_output is 1, expected true or false"),
        ({"rms_norm_eps": "a"}, "rms_norm_eps is 'a', expected a number"),
        ({"rope_theta": None}, "states no rope_theta: name the folder of its target"),
        ({"rope_theta": -1}, "rope_theta is -1, expected a positive number"),
        ({"rope_scaling": {"type": "longrope"}}, "rope_type is 'longrope', expected one of"),
        ({"rope_scaling": {"type": "linear"}}, "factor is None, but linear needs it"),
        (
            {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
            "low_freq_factor is None, but llama3 needs it",
        ),
        ({"rope_scaling": 3}, "rope_scaling is 3, expected an object"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5, expected 1"),
        (
            {"rope_scaling": {"type": "default", "mrope_section": [1]}},
            "mrope_section is set, expected one position per token",
        ),
        (
            {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2]}},
            "fc.weight is [64, 192], expected [64, 128]",
        ),
        (
            {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, -2, 3]}},
            "eagle_aux_hidden_state_layer_ids names layer -2, expected 0 or more",
        ),
        (
            {"eagle_config": {"eagle_aux_hidden_state_layer_ids": [1, 2, 2]}},
            "eagle_aux_hidden_state_layer_ids is [1, 2, 2], expected different layers",
        ),
        (
            {"eagle_config": {"eagle_aux_hidden_state_layer_ids": "all"}},
            "eagle_aux_hidden_state_layer_ids is 'all', expected a list of layers",
        ),
        ({"posterior_threshold": 0.09}, "posterior_threshold is 0.09, which accepts tokens"),
        ({"typical_acceptance": True}, "typical_acceptance is True, which accepts tokens"),
        ({"acceptance_method": "typical_acceptance_sampler"}, "acceptance_method is 'typical"),
        ({"outrider_head": {"kind": "dflash"}}, "is a head of kind 'dflash'; supported are"),
    ],
)
def test_a_wrong_configuration_is_refused_by_its_key(tmp_path, change, message):
    head = eagle()
    refuses(write(tmp_path, {**eagle_config(head), **change}, eagle_tensors(head)), message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"speculators_model_type": "dflash"}, "speculators_model_type is 'dflash'"),
        ({"norm_before_residual": None}, "norm_before_residual is missing"),
        ({"verifier_accept_k": 2}, "verifier_accept_k is 2, which accepts tokens"),
        ({"accept_tolerance": 0.1}, "accept_tolerance is 0.1, which accepts tokens"),
    ],
)
def test_a_wrong_configuration_of_speculators_is_refused(tmp_path, change, message):
    head = eagle()
    config = speculators_config(head)
    method = config["speculators_config"]["proposal_methods"][0]
    (method if set(change) <= set(method) else config).update(change)
    refuses(write(tmp_path, config, eagle_tensors(head)), message)


def moved(row: int, by: int):
    """d2t with one row moved."""

    def change(tensors):
        tensors["d2t"][row] += by

    return change


def set_tensor(name, value):
    def change(tensors):
        tensors[name] = value

    return change


def without(name):
    def change(tensors):
        del tensors[name]

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without("norm.weight"), "missing tensors norm.weight"),
        (without("fc.weight"), "missing tensors fc.weight"),
        (without("d2t"), "missing tensors d2t"),
        (without("midlayer.hidden_norm.weight"), "heads of EAGLE-1 and EAGLE-2 are not supported"),
        (without("embed_tokens.weight"), "states no embeddings: name the folder of its target"),
        (without("lm_head.weight"), "states no lm_head: name the folder of its target"),
        (set_tensor("bonus", torch.zeros(2)), "unexpected tensors bonus"),
        (set_tensor("fc.bias", torch.zeros(64)), "unexpected tensors fc.bias"),
        (set_tensor("layers.0.mlp.up_proj.weight", torch.zeros(2)), "stands beside midlayer.mlp"),
        (set_tensor("norm.weight", torch.ones(63)), "norm.weight is [63], expected [64]"),
        (
            set_tensor("norm.weight", torch.ones(64, dtype=torch.int8)),
            "norm.weight is torch.int8, expected floating point",
        ),
        (set_tensor("d2t", torch.zeros(50)), "d2t is torch.float32, expected integers"),
        (set_tensor("d2t", torch.zeros(49).long()), "d2t is [49], expected [50]"),
        (moved(49, 100), "d2t gives row 49 the target id 590, expected 0 to 511"),
        (moved(0, -1), "d2t gives row 0 the target id -1, expected 0 to 511"),
        (moved(3, 10), "d2t gives several rows the target id 40"),
        (moved(3, 1), "t2d contradicts d2t at target id 30: True"),
    ],
)
def test_wrong_tensors_are_refused_by_name(tmp_path, change, message):
    head = eagle()
    tensors = {name: value.clone() for name, value in eagle_tensors(head).items()}
    change(tensors)
    refuses(write(tmp_path, eagle_config(head), tensors), message)


def test_a_head_for_another_target_is_refused_by_what_differs(tmp_path, target):
    head = eagle()
    config, tensors = eagle_config(head), eagle_tensors(head)
    write(tmp_path / "theta", {**config, "rope_theta": 500000.0}, tensors)
    refuses(tmp_path / "theta", "rope_theta is 500000.0, but that of its target is 10000.0", target)
    taps = {"eagle_aux_hidden_state_layer_ids": [1, 2, 5]}
    write(tmp_path / "taps", {**config, "eagle_config": taps}, tensors)
    refuses(tmp_path / "taps", "names layer 5, expected 0 to 4, the target's number", target)
    wide = save_toy(tmp_path / "wide", hidden_size=32)
    write(tmp_path / "sizes", config, tensors)
    refuses(tmp_path / "sizes", "is for a target of hidden_size 64, but", wide)
    many = save_toy(tmp_path / "many", vocab_size=400)
    refuses(tmp_path / "sizes", "is for a target of vocab_size 512, but", many)


def test_files_that_are_no_checkpoint_are_named(tmp_path, target):
    assert not is_head_folder(tmp_path)
    assert not is_head_folder(target)
    refuses(tmp_path, "has no config.json")
    refuses(target, "describes no draft head; supported are eagle3, medusa, redrafter")
    (tmp_path / "config.json").write_text("{")
    refuses(tmp_path, "config.json is no JSON")
    (tmp_path / "config.json").write_text("[]")
    refuses(tmp_path, "config.json holds no JSON object")
    (tmp_path / "config.json").write_text(json.dumps(eagle_config(eagle())))
    refuses(tmp_path, "has no weights: no")
    torch.save({"fc.weight": [1, 2]}, tmp_path / "pytorch_model.bin")
    refuses(tmp_path, "pytorch_model.bin: 'fc.weight' is a list, not a tensor")
    torch.save({"fc.weight": eagle()}, tmp_path / "pytorch_model.bin")
    refuses(tmp_path, "holds more than tensors, or no tensors")
    (tmp_path / "model.safetensors").write_bytes(b"no such thing")
    refuses(tmp_path, "model.safetensors is no safetensors file")
    write(tmp_path, eagle_config(eagle()), eagle_tensors(eagle()))
    write(tmp_path / "more", {}, {"norm.weight": torch.ones(64)})
    (tmp_path / "more" / "model.safetensors").rename(tmp_path / "model-2.safetensors")
    refuses(tmp_path, "tensor norm.weight is in model-2.safetensors too")
