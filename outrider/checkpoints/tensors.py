"""Tensors of a checkpoint folder by name, from safetensors or from torch's own files."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def read_tensors(
    path: Path, wanted: Callable[[str], bool] = lambda _: True
) -> "dict[str, torch.Tensor]":
    """Return the tensors of one file whose names are wanted, as they are stored.

    Files of torch's own are read as data only, never as code.

    Raises: ValueError naming the file if it can't be read or holds something else; OSError.
    """
    import torch
    from safetensors import SafetensorError, safe_open

    if path.suffix == ".safetensors":
        try:
            with safe_open(path, framework="pt") as file:
                names = [name for name in file.keys() if wanted(name)]  # noqa: SIM118 (no mapping)
                return {name: file.get_tensor(name) for name in names}
        except SafetensorError as error:
            raise ValueError(f"{path} is no safetensors file: {error}") from error
    try:
        stored = torch.load(path, weights_only=True, map_location="cpu")
    except OSError:
        raise
    except Exception as error:  # pickle's and torch's own, of many classes
        raise ValueError(f"{path} holds more than tensors, or no tensors: {error}") from error
    if not isinstance(stored, dict):
        raise ValueError(f"{path} must hold a dict of tensors, not a {type(stored).__name__}")
    for name, value in stored.items():
        if not isinstance(name, str) or not isinstance(value, torch.Tensor):
            raise ValueError(f"{path}: {name!r} is a {type(value).__name__}, not a tensor")
    return {name: value for name, value in stored.items() if wanted(name)}
