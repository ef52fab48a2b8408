"""A draft model for nothing: some layers of the target, with its tokenizer, embedding and head.

Without training it is a stand-in for a draft model's shape and cost, not for its skill: kept to the
default layers, SmolLM2-135M agrees with its own greedy answers almost nowhere, and even 20 of its
30 layers agree in a quarter of the places only.
"""

import json
import re
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outrider.checkpoints.folder import make_once
from outrider.identity.files import TOKENIZER_FILE_NAMES
from outrider.identity.weights import weight_paths

_LAYER = re.compile(r"(?<=\.layers\.)(\d+)(?=\.)")


def default_layers(num_layers: int) -> tuple[int, ...]:
    """Return the layers kept where none are named: the first four and the last two.

    Raises: ValueError if there are no more than these.
    """
    if num_layers <= 6:
        raise ValueError(f"{num_layers} layers are too few to cut; name the layers to keep")
    return (0, 1, 2, 3, num_layers - 2, num_layers - 1)


def cut_layers(source: Path, folder: Path, *, layers: Sequence[int] | None = None) -> Path:
    """Return the folder with the source's model cut to these layers, made where it is missing.

    Raises: ValueError if a layer does not exist or they do not ascend.
    """
    config = json.loads((source / "config.json").read_bytes())
    num_layers = config["num_hidden_layers"]
    kept = default_layers(num_layers) if layers is None else tuple(layers)
    if not kept or sorted(set(kept)) != list(kept) or not 0 <= kept[0] <= kept[-1] < num_layers:
        raise ValueError(f"layers must ascend within [0, {num_layers}), not {list(kept)}")

    def fill(temporary: Path) -> None:
        text = json.dumps(cut_config(config, kept), indent=2) + "\n"
        (temporary / "config.json").write_text(text)
        _save_weights(source, temporary, kept)
        for name in TOKENIZER_FILE_NAMES:
            if (source / name).is_file():
                shutil.copyfile(source / name, temporary / name)

    return make_once(folder, fill)


def cut_config(config: dict[str, Any], kept: tuple[int, ...]) -> dict[str, Any]:
    """Return the configuration of a model that keeps these layers."""
    num_layers = config["num_hidden_layers"]

    def cut(value: Any) -> Any:
        # What is listed once a layer, such as layer_types, is cut as the layers are.
        per_layer = isinstance(value, list) and len(value) == num_layers
        return [value[layer] for layer in kept] if per_layer else value

    return {k: cut(v) for k, v in config.items()} | {"num_hidden_layers": len(kept)}


def _save_weights(source: Path, folder: Path, kept: tuple[int, ...]) -> None:
    from safetensors import safe_open
    from safetensors.torch import save_file

    new_layers = {str(old): str(new) for new, old in enumerate(kept)}
    tensors = {}
    for path in weight_paths(source):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118 (the file is no mapping)
                layer = _LAYER.search(name)
                if layer is None:
                    tensors[name] = file.get_tensor(name)
                elif layer[0] in new_layers:
                    new_name = _LAYER.sub(new_layers[layer[0]], name, count=1)
                    tensors[new_name] = file.get_tensor(name)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
