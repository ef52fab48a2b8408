"""The command line."""

import os


def main() -> None:
    """Run the program ``outrider``."""
    # gRPC reads this when it is loaded; its own notes have no place among a command's output.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    try:
        from outrider.cli.commands import run

        run()
    except KeyboardInterrupt:
        raise SystemExit(130) from None


__all__ = ["main"]
