"""Runs programs that a model wrote, so that they can do no harm to speak of."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path

RUNNER = Path(__file__).with_name("sandbox_runner.py")
TIMEOUT_S = 5.0
MAX_MEMORY_BYTES = 512 * 2**20
NO_NETWORK = ("unshare", "--map-root-user", "--net", "--")


def runs_well(program: str, *, timeout_s: float = TIMEOUT_S) -> bool:
    """Return True if a Python program ends by itself, without an error, within its limits.

    It runs in an interpreter of its own that sees no installed packages, in an empty folder that is
    deleted, with bounded time, memory, files and processes, and without a network where the system
    can take it away.
    """
    with tempfile.TemporaryDirectory(prefix="outrider-sandbox-") as folder:
        limits = (str(int(timeout_s) + 1), str(MAX_MEMORY_BYTES))
        process = subprocess.Popen(
            [*_prefix(), sys.executable, "-I", "-S", str(RUNNER), *limits],
            cwd=folder,
            env={"PATH": "/usr/bin:/bin", "HOME": folder, "TMPDIR": folder},
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            process.communicate(program.encode("utf-8", "replace"), timeout=timeout_s)
        except subprocess.TimeoutExpired:
            return False
        finally:
            _end(process)
        return process.returncode == 0


def _end(process: "subprocess.Popen[bytes]") -> None:
    """End the program and whatever it started."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@cache
def has_no_network() -> bool:
    """True if the system lets us run programs without a network."""
    if shutil.which(NO_NETWORK[0]) is None:
        return False
    done = subprocess.run([*NO_NETWORK, "true"], capture_output=True, check=False)
    return done.returncode == 0


def _prefix() -> tuple[str, ...]:
    return NO_NETWORK if has_no_network() else ()
