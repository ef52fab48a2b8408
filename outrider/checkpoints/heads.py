"""Draft heads that our trainer made, without what the target's folder already has.

A folder holds ``drafter.json`` (kind, configuration, the target that it was trained for) and
``drafter.safetensors``, in eight bits. ``assemble_head`` puts it and its target together into a
folder in a published layout: EAGLE-3 as its authors' checkpoints, Medusa as vLLM's, the recurrent
drafter flat in the same manner.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.checkpoints.folder import make_once
from outrider.checkpoints.pretrained import (
    CONFIG_NAME,
    HEAD_KEY,
    WEIGHTS_NAME,
    check_target,
    pretrained_digest,
)
from outrider.checkpoints.quantised import load_quantised, save_quantised
from outrider.checkpoints.target import read_borrowed, read_text_config
from outrider.identity.files import TOKENIZER_FILE_NAMES

if TYPE_CHECKING:
    import torch

Tensors = dict[str, "torch.Tensor"]


@dataclass(frozen=True, slots=True)
class HeadFile:
    """What ``drafter.json`` states of a head; ``config`` are the fields of its configuration."""

    kind: str
    config: Mapping[str, Any]
    target_weights_digest: str


def save_head(folder: Path, stated: HeadFile, tensors: Mapping[str, "torch.Tensor"]) -> None:
    """Write a head."""
    save_quantised(folder / WEIGHTS_NAME, tensors)
    (folder / CONFIG_NAME).write_text(json.dumps(asdict(stated)) + "\n")


def read_head(folder: Path) -> HeadFile:
    """Return what a folder states; Raises: OSError, ValueError."""
    path = folder / CONFIG_NAME
    try:
        stated = json.loads(path.read_bytes())
        return HeadFile(
            kind=str(stated["kind"]),
            config=dict(stated["config"]),
            target_weights_digest=str(stated["target_weights_digest"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} describes no draft head: {error}") from error


def is_trained_head(folder: Path) -> bool:
    """Return whether our trainer wrote a head into a folder, not a draft model."""
    try:
        return "kind" in json.loads((folder / CONFIG_NAME).read_bytes())
    except (OSError, ValueError, TypeError):
        return False


def load_head(folder: Path) -> tuple[HeadFile, Tensors]:
    """Return what a folder holds, in float32; Raises: OSError, ValueError."""
    return read_head(folder), load_quantised(folder / WEIGHTS_NAME)


def assemble_head(target: Path, trained: Path, folder: Path) -> Path:
    """Return the folder with the head, embeddings and logit rows, in bfloat16; made where missing.

    Raises: ValueError if the head was trained for another target or is of an unknown kind; OSError
        if files are missing.
    """
    stated = read_head(trained)
    layout = _LAYOUTS.get(stated.kind)
    if layout is None:
        raise ValueError(
            f"{trained / CONFIG_NAME}: kind is {stated.kind!r}, not one of {', '.join(_LAYOUTS)}"
        )
    check_target(target, trained, stated.target_weights_digest)

    def fill(temporary: Path) -> None:
        from safetensors.torch import save_file

        config, tensors = layout(stated.config, load_quantised(trained / WEIGHTS_NAME), target)
        config["dtype"] = "bfloat16"
        config[HEAD_KEY] = {
            "kind": stated.kind,
            "target_weights_digest": stated.target_weights_digest,
            "assembled_from": pretrained_digest(trained),
        }
        (temporary / "config.json").write_text(json.dumps(config) + "\n")
        stored = {
            name: (value.bfloat16() if value.is_floating_point() else value).contiguous()
            for name, value in tensors.items()
        }
        save_file(stored, temporary / "model.safetensors", metadata={"format": "pt"})
        for name in TOKENIZER_FILE_NAMES:
            if (target / name).is_file():
                shutil.copyfile(target / name, temporary / name)

    return make_once(folder, fill)


def _eagle3(config: Mapping[str, Any], trained: Tensors, target: Path) -> tuple[Any, Tensors]:
    import torch

    embeddings, head = read_borrowed(target)
    draft_ids = torch.tensor(config["draft_ids"])
    is_drafted = torch.zeros(config["vocab_size"], dtype=torch.bool)
    is_drafted[draft_ids] = True
    rope = dict(config["rope"])
    theta = rope.pop("rope_theta")
    tensors = {
        **trained,
        "embed_tokens.weight": embeddings,
        "lm_head.weight": head[draft_ids],
        "d2t": draft_ids - torch.arange(len(draft_ids)),
        "t2d": is_drafted,
    }
    copied = (
        "hidden_size",
        "intermediate_size",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "target_hidden_size",
        "vocab_size",
        "rms_norm_eps",
        "max_position_embeddings",
        "attention_bias",
        "norm_before_residual",
        "norm_before_fc",
        "fc_norm",
        "norm_output",
    )
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "hidden_act": "silu",
        "num_hidden_layers": 1,
        "tie_word_embeddings": False,
        **{name: config[name] for name in copied},
        "draft_vocab_size": len(draft_ids),
        "rope_theta": theta,
        "rope_scaling": None if rope.get("rope_type", "default") == "default" else rope,
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": list(config["tap_layers"]),
            "use_aux_hidden_state": True,
        },
    }, tensors


def _medusa(config: Mapping[str, Any], trained: Tensors, target: Path) -> tuple[Any, Tensors]:
    import torch

    draft_ids = torch.tensor(config["draft_ids"])
    # One matrix for all heads, which vLLM calls the original one and reads under this name.
    tensors = {**trained, "lm_heads.0.weight": read_borrowed(target)[1][draft_ids]}
    if len(draft_ids) < config["vocab_size"]:
        tensors["token_map"] = draft_ids
    return {
        "architectures": ["MedusaModel"],
        "model_type": "medusa",
        "num_heads": config["num_heads"],
        "num_hidden_layers": config["num_layers"],
        "hidden_size": config["hidden_size"],
        "vocab_size": config["vocab_size"],
        "truncated_vocab_size": len(draft_ids),
        "original_lm_head": True,
        "medusa_fc_bias": config["bias"],
        "tap_layers": list(config["tap_layers"]),
        "max_position_embeddings": _num_positions(target),
    }, tensors


def _redrafter(config: Mapping[str, Any], trained: Tensors, target: Path) -> tuple[Any, Tensors]:
    import torch

    embeddings, head = read_borrowed(target)
    draft_ids = torch.tensor(config["draft_ids"])
    tensors = {
        **trained,
        "embed_tokens.weight": embeddings,
        "lm_head.weight": head[draft_ids],
    }
    if len(draft_ids) < config["vocab_size"]:
        tensors["token_map"] = draft_ids
    return {
        "architectures": ["ReDrafterHead"],
        "model_type": "redrafter",
        **{name: value for name, value in config.items() if name != "draft_ids"},
        "draft_vocab_size": len(draft_ids),
        "max_position_embeddings": _num_positions(target),
    }, tensors


def _num_positions(target: Path) -> int:
    stated = read_text_config(target).get("max_position_embeddings")
    if not isinstance(stated, int):
        raise ValueError(f"{target / 'config.json'}: no max_position_embeddings")
    return stated


Layout = Callable[[Mapping[str, Any], Tensors, Path], tuple[Any, Tensors]]
_LAYOUTS: dict[str, Layout] = {"eagle3": _eagle3, "medusa": _medusa, "redrafter": _redrafter}
