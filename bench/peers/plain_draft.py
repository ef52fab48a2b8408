"""The trained draft model as other engines can load it: without the rows of its mask tokens."""

import json
import shutil
from pathlib import Path

from safetensors.torch import load_file, save_file

EMBEDDINGS = "model.embed_tokens.weight"
OWN_FIELD = "outrider_drafter"


def write_plain_draft(draft: Path, target: Path, folder: Path) -> Path:
    """Write the draft model with the target's vocabulary; return its folder.

    The rows that are left out stand for places that are still open in a parallel draft. Without
    them the model drafts token after token, which is all that other engines do.
    """
    if folder.is_dir():
        shutil.rmtree(folder)
    shutil.copytree(draft, folder)
    config = json.loads((draft / "config.json").read_text())
    config.pop(OWN_FIELD, None)
    config["vocab_size"] = json.loads((target / "config.json").read_text())["vocab_size"]
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    tensors = load_file(folder / "model.safetensors")
    tensors[EMBEDDINGS] = tensors[EMBEDDINGS][: config["vocab_size"]].contiguous()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
