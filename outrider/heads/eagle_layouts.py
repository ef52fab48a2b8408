"""EAGLE-3 checkpoints of its authors (SafeAILab/EAGLE) and of the library speculators.

Both hold the same tensors: the authors' are flat and call the layer ``midlayer``, in speculators'
the layer is ``layers.0`` and its sizes stand in ``transformer_layer_config``.
"""

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from outrider.heads.draft_ids import ids_of_offsets
from outrider.heads.eagle import EagleConfig, EagleHead
from outrider.heads.folder import HeadFolder
from outrider.heads.loaded import LoadedHead
from outrider.heads.rope import rope_of

TAPS = "eagle_aux_hidden_state_layer_ids"
SPECULATORS = "speculators_model_type"
_LAYER = re.compile(r"^(model\.)?(layers\.0\.|midlayer\.)?")


def flat_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with the nested parts on one level; what is null is not stated."""
    flat: dict[str, Any] = {}
    for part in (config.get("transformer_layer_config"), config.get("eagle_config"), config):
        if isinstance(part, dict):
            flat |= {key: value for key, value in part.items() if value is not None}
    return flat


def read_eagle3(folder: HeadFolder) -> LoadedHead:
    """Return the head of a folder whose configuration is flat.

    Raises: ValueError naming a key or a tensor.
    """
    _refuse_what_is_not_supported(folder)
    folder.rename({name: _name(name) for name in folder.names})
    for name in folder.names:
        if name.endswith("rotary_emb.inv_freq"):
            folder.drop(name)  # older files keep it; it follows from the configuration
    if not folder.has("midlayer.hidden_norm.weight"):
        raise ValueError(
            f"{folder.path}: missing tensors midlayer.hidden_norm.weight; heads of EAGLE-1 and "
            "EAGLE-2 are not supported"
        )
    hidden_size, vocab_size = folder.size("hidden_size"), folder.size("vocab_size")
    target_hidden_size = folder.size("target_hidden_size", _target_width(folder, hidden_size))
    folder.check_against_target(hidden_size=target_hidden_size, vocab_size=vocab_size)
    taps = _taps(folder, hidden_size, target_hidden_size)
    embeddings = _embeddings(folder, vocab_size, hidden_size)
    lm_head, draft_ids = _lm_head(folder, vocab_size, hidden_size)
    module = EagleHead(_config(folder, taps, target_hidden_size, draft_ids))
    output = "midlayer.self_attn.o_proj"
    if module.config.attention_bias and folder.has(f"{output}.bias"):
        # Heads of Llama's form have one there too, those trained for Qwen's do not.
        attention = module.midlayer.self_attn
        attention.o_proj = nn.Linear(attention.o_proj.in_features, hidden_size)
    folder.fill(module)
    folder.refuse_leftovers()
    return LoadedHead(
        kind="eagle3",
        module=module,
        embeddings=embeddings,
        lm_head=lm_head,
        draft_ids=draft_ids,
        tap_layers=taps,
        target_hidden_size=target_hidden_size,
        vocab_size=vocab_size,
        max_position_embeddings=module.config.max_position_embeddings,
        target_weights_digest=folder.target_weights_digest,
    )


def _name(name: str) -> str:
    found = _LAYER.match(name)
    assert found is not None
    return ("midlayer." if found[2] else "") + name[found.end() :]


def _refuse_what_is_not_supported(folder: HeadFolder) -> None:
    config = folder.config
    expected: list[tuple[str, Any]] = [
        ("num_hidden_layers", 1),
        ("hidden_act", "silu"),
        ("mlp_bias", False),
        ("logit_scale", 1.0),
        ("use_aux_hidden_state", True),
        ("quantization_config", None),
    ]
    for key, value in expected:
        if config.get(key, value) != value:
            raise folder.wrong_config(key, f"is {config[key]!r}, expected {value!r}")
    if "sliding_window" in config and config.get("use_sliding_window", True):
        raise folder.wrong_config("sliding_window", f"is {config['sliding_window']}, expected none")
    if SPECULATORS in config and "norm_before_residual" not in config:
        # The library reads its absence as false, vLLM as true.
        raise folder.wrong_config("norm_before_residual", "is missing, expected true or false")


def _target_width(folder: HeadFolder, hidden_size: int) -> int:
    return hidden_size if folder.target is None else folder.target.size("hidden_size")


def _taps(folder: HeadFolder, hidden_size: int, target_hidden_size: int) -> tuple[int, ...]:
    """Return which hidden states the head reads: those that enter these layers of the target.

    Where nothing is said they are those of the authors' code: 2, half of the layers, all but three.
    """
    if TAPS in folder.config:
        taps = folder.check_taps(TAPS, folder.config[TAPS])
    else:
        num_layers = folder.needed_target(TAPS).size("num_hidden_layers")
        taps = folder.check_taps(TAPS, [2, num_layers // 2, num_layers - 3])
    width = folder.shape("fc.weight")[-1]
    if width != len(taps) * target_hidden_size:
        raise folder.wrong_tensor(
            "fc.weight",
            f"is {list(folder.shape('fc.weight'))}, expected [{hidden_size}, "
            f"{len(taps) * target_hidden_size}]: {TAPS} names {len(taps)} layers of width "
            f"{target_hidden_size}",
        )
    return taps


def _embeddings(folder: HeadFolder, vocab_size: int, hidden_size: int) -> torch.Tensor:
    if folder.has("embed_tokens.weight"):
        return folder.take("embed_tokens.weight", [vocab_size, hidden_size])
    borrowed = folder.needed_target("embeddings").embeddings
    if borrowed.shape[1] != hidden_size:
        raise ValueError(
            f"{folder.path}: missing tensors embed_tokens.weight; the target's are of width "
            f"{borrowed.shape[1]}, expected {hidden_size}"
        )
    return borrowed[:vocab_size].to(folder.dtype)


def _lm_head(
    folder: HeadFolder, vocab_size: int, hidden_size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the rows of the logits and their target ids, ascending."""
    stated = folder.size("draft_vocab_size", folder.size("truncated_vocab_size", vocab_size))
    if folder.has("lm_head.weight"):
        rows = folder.take("lm_head.weight", [stated, hidden_size])
        ids = ids_of_offsets(folder, vocab_size, stated)
    else:
        whole = folder.needed_target("lm_head").lm_head
        if whole.shape[1] != hidden_size:
            raise ValueError(
                f"{folder.path}: missing tensors lm_head.weight; the target's is of width "
                f"{whole.shape[1]}, expected {hidden_size}"
            )
        ids = ids_of_offsets(folder, vocab_size, stated)
        rows = whole[ids].to(folder.dtype)
    order = ids.argsort()
    return rows[order].contiguous(), ids[order]


def _config(
    folder: HeadFolder, taps: tuple[int, ...], target_hidden_size: int, draft_ids: torch.Tensor
) -> EagleConfig:
    hidden_size, num_heads = folder.size("hidden_size"), folder.size("num_attention_heads")
    eps = folder.config.get("rms_norm_eps", 1e-6)
    if not isinstance(eps, float | int) or eps < 0:
        raise folder.wrong_config("rms_norm_eps", f"is {eps!r}, expected a number")
    return EagleConfig(
        hidden_size=hidden_size,
        intermediate_size=folder.size("intermediate_size"),
        num_attention_heads=num_heads,
        num_key_value_heads=folder.size("num_key_value_heads", num_heads),
        head_dim=folder.size("head_dim", hidden_size // num_heads),
        target_hidden_size=target_hidden_size,
        vocab_size=folder.size("vocab_size"),
        tap_layers=taps,
        draft_ids=tuple(draft_ids.tolist()),
        rms_norm_eps=float(eps),
        max_position_embeddings=folder.size("max_position_embeddings", 2048),
        rope=rope_of(folder),
        attention_bias=folder.switch("attention_bias") or folder.switch("qkv_bias"),
        norm_before_residual=folder.switch("norm_before_residual"),
        norm_before_fc=folder.switch("norm_before_fc"),
        fc_norm=folder.switch("fc_norm"),
        norm_output=folder.switch("norm_output"),
    )
