"""Draft models that our trainer made, without what the target's folder already has.

A folder holds ``drafter.json`` and ``drafter.safetensors``: some layers of the target, trained, in
eight bits with one scale a row. Embeddings and head are the target's own. ``assemble`` puts both
together into a folder that transformers can load.
"""

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.checkpoints.cut import cut_config
from outrider.checkpoints.folder import make_once
from outrider.checkpoints.quantised import load_quantised, save_quantised
from outrider.identity.files import TOKENIZER_FILE_NAMES
from outrider.identity.weights import weight_paths, weights_digest

if TYPE_CHECKING:
    import torch

CONFIG_NAME = "drafter.json"
WEIGHTS_NAME = "drafter.safetensors"
CONFIG_KEY = "outrider_drafter"  # read by the engine from an assembled model's config.json
HEAD_KEY = "outrider_head"  # the same of an assembled draft head
MASK = "mask_embedding"
PADDING = 64  # rows of embeddings are added in such steps; the first is the mask token's
_EMBEDDING = re.compile(r"embed_tokens\.weight$")


@dataclass(frozen=True, slots=True)
class PretrainedConfig:
    """What ``drafter.json`` states.

    ``draft_ids``: the target ids that the draft head may propose, ascending; empty: all.
    ``num_parallel``: tokens that one pass proposes, the first behind the last known token and the
    others behind mask tokens.
    """

    layers: tuple[int, ...]
    num_parallel: int
    draft_ids: tuple[int, ...]
    target_weights_digest: str


def save_pretrained(
    folder: Path,
    config: PretrainedConfig,
    layers: Mapping[str, "torch.Tensor"],
    *,
    mask_embedding: "torch.Tensor | None" = None,
) -> None:
    """Write the trained tensors, named as in transformers' decoder without its head."""
    masks = {} if mask_embedding is None else {MASK: mask_embedding}
    save_quantised(folder / WEIGHTS_NAME, {**layers, **masks})
    (folder / CONFIG_NAME).write_text(json.dumps(asdict(config)) + "\n")


def read_config(folder: Path) -> PretrainedConfig:
    """Return what the folder states of its weights; Raises: OSError, ValueError."""
    path = folder / CONFIG_NAME
    try:
        stated = json.loads(path.read_bytes())
        return PretrainedConfig(
            layers=tuple(stated["layers"]),
            num_parallel=int(stated["num_parallel"]),
            draft_ids=tuple(stated["draft_ids"]),
            target_weights_digest=str(stated["target_weights_digest"]),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} describes no drafter: {error}") from error


def load_pretrained(
    folder: Path,
) -> tuple[PretrainedConfig, dict[str, "torch.Tensor"], "torch.Tensor | None"]:
    """Return configuration, float32 layers and mask embedding as they were saved.

    Raises: OSError, ValueError.
    """
    layers = load_quantised(folder / WEIGHTS_NAME)
    mask = layers.pop(MASK, None)
    return read_config(folder), layers, mask


def assemble(target: Path, pretrained: Path, folder: Path) -> Path:
    """Return the folder with the whole draft model in bfloat16, made where it is missing.

    Raises: ValueError if the weights were trained for another target; OSError if files are missing.
    """
    config = read_config(pretrained)
    check_target(target, pretrained, config.target_weights_digest)

    def fill(temporary: Path) -> None:
        full = cut_config(json.loads((target / "config.json").read_bytes()), config.layers)
        vocab_size = full["vocab_size"]
        _save_weights(target, pretrained, temporary, vocab_size)
        full["vocab_size"] = vocab_size + PADDING
        full["dtype"] = "bfloat16"
        full[CONFIG_KEY] = {
            "num_parallel": config.num_parallel,
            "mask_token_id": vocab_size,
            "draft_ids": list(config.draft_ids),
            "assembled_from": pretrained_digest(pretrained),
        }
        (temporary / "config.json").write_text(json.dumps(full) + "\n")
        for name in TOKENIZER_FILE_NAMES:
            if (target / name).is_file():
                shutil.copyfile(target / name, temporary / name)

    return make_once(folder, fill)


def check_target(target: Path, trained: Path, trained_for: str) -> None:
    """Check that a target has the weights with this digest; Raises: ValueError naming both."""
    if (digest := weights_digest(target)) != trained_for:
        raise ValueError(
            f"{trained} was trained for a target with weights {trained_for}, "
            f"but those of {target} are {digest}"
        )


def is_assembled_from(folder: Path, pretrained: Path) -> bool:
    """Return whether a folder was assembled from these very weights."""
    try:
        config = json.loads((folder / "config.json").read_bytes())
    except (OSError, ValueError):
        return False
    stated = config.get(CONFIG_KEY) or config.get(HEAD_KEY) or {}
    return bool(stated.get("assembled_from") == pretrained_digest(pretrained))


def pretrained_digest(pretrained: Path) -> str:
    """Return the digest of what the trainer wrote; Raises: OSError."""
    parts = [(pretrained / name).read_bytes() for name in (CONFIG_NAME, WEIGHTS_NAME)]
    return blake2b(b"".join(parts), digest_size=16).hexdigest()


def _save_weights(target: Path, pretrained: Path, folder: Path, vocab_size: int) -> None:
    import torch
    from safetensors import safe_open
    from safetensors.torch import save_file

    _, trained, mask = load_pretrained(pretrained)
    tensors: dict[str, Any] = {}
    for path in weight_paths(target):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 (the file is no mapping)
                if _EMBEDDING.search(name) or name == "lm_head.weight":
                    value = file.get_tensor(name)[:vocab_size].bfloat16()
                    added = torch.zeros(PADDING, value.shape[1], dtype=torch.bfloat16)
                    if mask is not None and _EMBEDDING.search(name):
                        added[0] = mask
                    tensors[name] = torch.cat([value, added])
    for name, value in trained.items():
        tensors[f"model.{name}"] = value.bfloat16()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
