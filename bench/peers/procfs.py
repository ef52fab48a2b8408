"""CPU time and memory of processes, as Linux counts them."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

PROC = Path("/proc")
RESET_PEAK = "5"  # what clear_refs takes to forget the peak so far
USER_TICKS, SYSTEM_TICKS = 11, 12  # fields of stat behind the name


def descendants(pid: int) -> list[int]:
    """Return a process and all that it started, threads' children included."""
    found = [pid]
    for parent in found:
        for task in _tasks(parent):
            with suppress(OSError):
                found += map(int, (task / "children").read_text().split())
    return found


def cpu_s(pids: Iterable[int]) -> float:
    """Return the CPU seconds that living processes have used so far."""
    ticks = 0
    for pid in pids:
        with suppress(OSError):
            # The name in parentheses may hold anything, blanks too.
            fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[USER_TICKS]) + int(fields[SYSTEM_TICKS])
    return ticks / os.sysconf("SC_CLK_TCK")


def reset_peaks(pids: Iterable[int]) -> None:
    """Let the next peak be that of now on; where the kernel cannot, it stays that of the start."""
    for pid in pids:
        with suppress(OSError):
            (PROC / str(pid) / "clear_refs").write_text(RESET_PEAK)


def peak_rss_bytes(pids: Iterable[int]) -> int:
    """Return the peaks of resident memory, added up; pages that are shared count in each."""
    total = 0
    for pid in pids:
        with suppress(OSError):
            for line in (PROC / str(pid) / "status").read_text().splitlines():
                if line.startswith("VmHWM:"):
                    total += int(line.split()[1]) * 1024
    return total


def _tasks(pid: int) -> list[Path]:
    try:
        return list((PROC / str(pid) / "task").iterdir())
    except OSError:
        return []
