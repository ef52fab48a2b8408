"""Draft heads that our trainer made, without what the target's folder already has.

A folder holds ``drafter.json`` (kind, configuration, the target that it was trained for) and
``drafter.safetensors``, in eight bits.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.checkpoints.pretrained import CONFIG_NAME, WEIGHTS_NAME
from outrider.checkpoints.quantised import load_quantised, save_quantised

if TYPE_CHECKING:
    import torch


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


def load_head(folder: Path) -> tuple[HeadFile, dict[str, "torch.Tensor"]]:
    """Return what a folder holds, in float32; Raises: OSError, ValueError."""
    return read_head(folder), load_quantised(folder / WEIGHTS_NAME)
