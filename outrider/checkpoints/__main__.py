"""``python -m outrider.checkpoints prepare``: make the small models that the examples use."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from outrider.checkpoints.smollm2 import DEFAULT_FOLDER, prepare


def main(arguments: Sequence[str] | None = None) -> int:
    """Make what is missing and write the folders of target and draft model, a line each."""
    parser = argparse.ArgumentParser(prog="python -m outrider.checkpoints", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("prepare", help="make target and draft model where missing")
    command.add_argument("--out", type=Path, default=DEFAULT_FOLDER, help="default: %(default)s")
    options = parser.parse_args(arguments)
    try:
        prepared = prepare(options.out)
    except FileNotFoundError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write(f"{prepared.target}\n{prepared.draft}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
