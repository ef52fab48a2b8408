"""Folders that are either complete or not there."""

import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path


def make_once(folder: Path, fill: Callable[[Path], None]) -> Path:
    """Return the folder; where it is missing, fill a temporary one beside it and rename that.

    Two processes at once both fill, and the first to finish wins. Whatever ``fill`` raises goes on,
    and nothing is left behind.
    """
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        fill(temporary)
        # Made for their owner only, by tempfile and safetensors; but servers run as other users.
        temporary.chmod(0o755)
        for path in temporary.iterdir():
            path.chmod(0o644)
        try:
            temporary.rename(folder)
        except OSError:
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return folder
