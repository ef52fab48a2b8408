"""``python -m outrider.checkpoints``: make the small models that the examples use, and assemble
trained drafters with their targets."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from outrider.checkpoints.heads import assemble_head, is_trained_head
from outrider.checkpoints.pretrained import assemble
from outrider.checkpoints.smollm2 import DEFAULT_FOLDER, prepare


def main(arguments: Sequence[str] | None = None) -> int:
    """Make what is asked for and write the folders, a line each."""
    parser = argparse.ArgumentParser(prog="python -m outrider.checkpoints", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("prepare", help="make target and draft model where missing")
    command.add_argument("--out", type=Path, default=DEFAULT_FOLDER, help="default: %(default)s")
    command = commands.add_parser("assemble", help="put a trained drafter and its target together")
    command.add_argument("--target", type=Path, required=True, help="folder of the target")
    command.add_argument("--drafter", type=Path, required=True, help="what outrider train wrote")
    command.add_argument("--out", type=Path, required=True, help="folder to make")
    options = parser.parse_args(arguments)
    try:
        if options.command == "assemble":
            if options.out.exists():
                raise ValueError(f"--out {options.out} exists already")
            is_head = is_trained_head(options.drafter)
            put_together = assemble_head if is_head else assemble
            made = [put_together(options.target, options.drafter, options.out)]
        else:
            prepared = prepare(options.out)
            made = [prepared.target, prepared.draft, *prepared.heads]
    except (OSError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    sys.stdout.write("".join(f"{folder}\n" for folder in made))
    return 0


if __name__ == "__main__":
    sys.exit(main())
