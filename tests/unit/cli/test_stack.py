"""Whatever ends a command, its services end with it."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from outrider.cli import stack as stack_module
from outrider.cli.interrupts import cancelled_by_signals
from outrider.cli.stack import TETHER, Service, Stack

MODULE = "tests.unit.cli.stubborn"


def service(name: str, folder: Path) -> Service:
    return Service(name, MODULE, (), folder, folder / f"{name}.log")


async def test_a_service_has_a_session_of_its_own_and_is_ended_by_force(tmp_path, monkeypatch):
    monkeypatch.setattr(stack_module, "STOP_LOADING_S", 0.05)
    one = service("one", tmp_path)
    await one.start()
    assert one.process is not None
    assert os.getsid(one.process.pid) == one.process.pid
    await one.stop()
    assert one.process.returncode == -signal.SIGKILL


async def test_a_cancelled_stop_ends_all_at_once(tmp_path):
    services = [service(name, tmp_path) for name in ("verifier", "drafter", "orchestrator")]
    await asyncio.gather(*(each.start() for each in services))
    for each in services:
        each.was_ready = True  # so that nothing is hurried
    stopping = asyncio.create_task(Stack([services[0]], [services[1]], services[2]).stop())
    await asyncio.sleep(0.05)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert [each.process and each.process.returncode for each in services] == [-signal.SIGKILL] * 3


def test_a_tethered_process_dies_with_its_parent():
    sleeper = [*TETHER, "PARENT", "-c", "print(flush=True); import time; time.sleep(60)"]
    parent = (
        "import os, subprocess;"
        f"command = {sleeper!r};"
        "command[command.index('PARENT')] = str(os.getpid());"
        "child = subprocess.Popen(command, start_new_session=True);"
        "child.wait()"
    )
    process = subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE)
    assert process.stdout is not None
    with process.stdout:
        process.stdout.readline()
        process.kill()
        process.wait()
        assert process.stdout.read() == b""  # the end of file: nobody holds the pipe any more


def test_a_late_tether_starts_nothing():
    command = [*TETHER, "0", "-c", "print('started')"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert (done.returncode, done.stdout) == (1, "")


async def test_each_signal_cancels_once_more():
    cancelled = 0

    async def work() -> None:
        nonlocal cancelled
        with cancelled_by_signals(Console(quiet=True)):
            for _ in range(2):
                try:
                    os.kill(os.getpid(), signal.SIGINT)
                    await asyncio.sleep(10)
                except asyncio.CancelledError:
                    cancelled += 1

    await asyncio.create_task(work())
    assert cancelled == 2
