"""The command line."""

from outrider.cli.main import main

__all__ = ["main"]
