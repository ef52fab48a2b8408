"""Where a measurement goes: a table for people, a JSON file with a ``summary`` for programs."""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

import outrider

FOLDER = Path("build/bench")


def write_report(
    name: str, summary: Mapping[str, float], details: Mapping[str, object], folder: Path = FOLDER
) -> Path:
    """Write ``NAME.json`` and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.json"
    report = {
        "name": name,
        "version": outrider.__version__,
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {"processor": platform.machine(), "python": platform.python_version()},
        "summary": dict(summary),
        "details": dict(details),
    }
    path.write_text(json.dumps(report, indent=2) + "\n")
    return path


def print_table(title: str, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table, the first column to the left, the others to the right."""
    table = Table(title=title, box=box.SIMPLE)
    for index, header in enumerate(headers):
        table.add_column(header, justify="left" if index == 0 else "right")
    for row in rows:
        table.add_row(*row)
    Console(highlight=False).print(table)


def num_cores() -> int:
    """Return the number of CPUs that this process and those it starts may use."""
    return len(os.sched_getaffinity(0))


def processor() -> str:
    """Return the processor's name."""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return "unknown processor"
