"""Trained matrices in eight bits, with one scale a row."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

SCALE = ".scale"


def save_quantised(path: Path, tensors: Mapping[str, "torch.Tensor"]) -> None:
    """Write matrices as int8 and their scales beside them; all else as float32."""
    from safetensors.torch import save_file

    stored: dict[str, torch.Tensor] = {}
    for name, value in tensors.items():
        if value.dim() == 2:
            stored[name], stored[name + SCALE] = quantise(value)
        else:
            stored[name] = value.detach().float().cpu().contiguous()
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file(stored, path)
    path.chmod(0o644)  # saved for their owner only; servers run as other users


def load_quantised(path: Path) -> dict[str, "torch.Tensor"]:
    """Return float32 tensors; Raises: OSError."""
    from safetensors.torch import load_file

    stored = load_file(path)
    tensors: dict[str, torch.Tensor] = {}
    for name, value in stored.items():
        if not name.endswith(SCALE):
            scale = stored.get(name + SCALE)
            tensors[name] = value if scale is None else value.float() * scale[:, None]
    return tensors


def quantise(weight: "torch.Tensor") -> tuple["torch.Tensor", "torch.Tensor"]:
    """Return int8 values and the scale of every row: weight is about value x scale.

    Shapes: weight [out, in]; int8 [out, in]; float32 [out].
    """
    weight = weight.detach().float().cpu()
    scale = weight.abs().amax(dim=1).clamp(min=1e-12) / 127
    return (weight / scale[:, None]).round().char().contiguous(), scale.contiguous()
