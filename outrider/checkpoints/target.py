"""What draft heads borrow of a target's folder: embeddings, the matrix of its head, its config."""

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.checkpoints.tensors import read_tensors
from outrider.identity.weights import weight_paths

if TYPE_CHECKING:
    import torch

EMBEDDING_NAMES = ("embed_tokens.weight", "embed_in.weight", "wte.weight")
HEAD_NAMES = ("lm_head.weight", "embed_out.weight")


def read_text_config(target: Path) -> dict[str, Any]:
    """Return the target's configuration, of one that sees pictures too the part about text.

    Raises: ValueError if it is no JSON object; OSError.
    """
    path = target / "config.json"
    try:
        config = json.loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path} is no JSON: {error}") from error
    if not isinstance(config, dict):
        raise ValueError(f"{path} holds no JSON object")
    text = config.get("text_config")
    return text if isinstance(text, dict) else config


def read_borrowed(target: Path) -> "tuple[torch.Tensor, torch.Tensor]":
    """Return embeddings and head of a target, the same tensor where both are tied.

    Shapes: both [V, H], as they are stored.
    Raises: ValueError if the folder has no embeddings under a known name; OSError.
    """
    found: dict[str, torch.Tensor] = {}
    for path in weight_paths(target):
        found |= read_tensors(path, lambda name: _is_one_of(name, EMBEDDING_NAMES + HEAD_NAMES))
    embeddings = next((v for name, v in found.items() if _is_one_of(name, EMBEDDING_NAMES)), None)
    if embeddings is None:
        raise ValueError(f"{target} has no embeddings: no {' and no '.join(EMBEDDING_NAMES)}")
    head = next((v for name, v in found.items() if _is_one_of(name, HEAD_NAMES)), embeddings)
    return embeddings, head


def _is_one_of(name: str, endings: tuple[str, ...]) -> bool:
    return any(name == ending or name.endswith(f".{ending}") for ending in endings)
