"""Folders of draft heads as they are published, read into one form."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from outrider.checkpoints.heads import is_trained_head
from outrider.checkpoints.pretrained import HEAD_KEY
from outrider.heads.eagle_layouts import SPECULATORS, flat_config, read_eagle3
from outrider.heads.folder import PATTERNS, HeadFolder, Target, read_config, refuse_lossy
from outrider.heads.loaded import LoadedHead
from outrider.heads.medusa_layouts import read_medusa
from outrider.heads.redrafter_layout import read_redrafter

READERS = {"eagle3": read_eagle3, "medusa": read_medusa, "redrafter": read_redrafter}
# Only heads that draft for a target have such keys; plain models have none of them.
_EAGLE_KEYS = ("draft_vocab_size", "truncated_vocab_size", "eagle_config")

__all__ = ["LoadedHead", "is_head_folder", "read_head_folder"]


def is_head_folder(folder: Path) -> bool:
    """Return whether a folder holds a draft head of any kind, be it one that cannot be read."""
    if any(folder.glob(PATTERNS[0])):
        return True
    try:
        config = read_config(folder)
    except (OSError, ValueError):
        return is_trained_head(folder)
    return SPECULATORS in config or _kind(config) is not None


def read_head_folder(
    folder: Path, target: Path | None = None, *, dtype: torch.dtype = torch.float32
) -> LoadedHead:
    """Return the head of a folder: EAGLE-3 as its authors or the library speculators write it,
    Medusa as its authors or vLLM write it, or what ``outrider.checkpoints assemble`` made.

    ``target`` lends what a checkpoint leaves out (embeddings, the matrix of its head, rope_theta,
    which layers there are), and the head is checked against it. Weights are given in ``dtype``.

    Raises: ValueError naming file, tensor or key, with what was found and what was expected;
        OSError.
    """
    config = read_config(folder)
    refuse_lossy(folder / "config.json", config)
    speculators = config.get(SPECULATORS, "eagle3")
    if speculators != "eagle3":
        raise ValueError(
            f"{folder / 'config.json'}: {SPECULATORS} is {speculators!r}, expected 'eagle3'"
        )
    kind = "medusa" if any(folder.glob(PATTERNS[0])) else _kind(config)
    if kind not in READERS:
        what = "describes no draft head" if kind is None else f"is a head of kind {kind!r}"
        raise ValueError(f"{folder} {what}; supported are {', '.join(READERS)}")
    lender = None if target is None else Target(target)
    given = HeadFolder(folder, flat_config(config), lender, dtype)
    given.read()
    return READERS[kind](given)


def _kind(config: Mapping[str, Any]) -> str | None:
    stated = config.get(HEAD_KEY)
    if isinstance(stated, dict):
        return str(stated.get("kind"))
    if SPECULATORS in config:
        return "eagle3"
    names = [config.get("model_type"), *(config.get("architectures") or [])]
    words = " ".join(str(name).lower() for name in names)
    for kind in ("medusa", "redrafter"):
        if kind in words or any(key.startswith(kind) for key in config):
            return kind
    if "eagle" in words or any(key in config for key in _EAGLE_KEYS):
        return "eagle3"
    return None
