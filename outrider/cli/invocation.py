"""How a command was called, for reports of what it made."""

import shlex
import sys
from pathlib import Path


def invocation() -> str:
    """Return the command line, of paths the last part: where a machine keeps things tells nobody
    anything."""
    words = [Path(word).name if Path(word).is_absolute() else word for word in sys.argv[1:]]
    return shlex.join(["outrider", *words])
