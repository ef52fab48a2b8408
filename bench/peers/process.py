"""This side of the protocol: a driver's process that plays a turn and sleeps in between."""

import asyncio
import json
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from bench.peers import procfs
from bench.peers.turn import Played, Turn

LOGS = Path("build/logs/side_by_side")
MAX_LINE_BYTES = 1 << 26
START_TIMEOUT_S = 1800.0  # vLLM compiles when it starts for the first time
TURN_TIMEOUT_S = 3600.0
STOP_S = 60.0
SETTLE_S = 2.0  # thread pools may spin for a moment after their work
IDLE_SAMPLE_S = 2.0
MAX_IDLE_CORES = 0.02
CUT_LINE = 300


class PeerError(Exception):
    """A driver did not start or could not play; the message says why."""


class Peer:
    """A driver's process and what is known of it."""

    def __init__(self, name: str, process: asyncio.subprocess.Process) -> None:
        self.name = name
        self.facts: dict[str, str] = {}
        self.idle_cores = 0.0
        """CPU seconds per second while it has nothing to do."""
        self.is_stopped_between_turns = False
        self._process = process

    @classmethod
    async def start(cls, name: str, command: Sequence[str]) -> "Peer":
        """Start a driver and wait until it is ready; Raises: PeerError if it does not get there."""
        with _log_path(name).open("wb") as log:
            try:
                process = await asyncio.create_subprocess_exec(
                    *command,
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    stderr=log,
                    limit=MAX_LINE_BYTES,
                    start_new_session=True,
                    # The repository is on the path of an environment that it is not installed in.
                    env={**os.environ, "PYTHONPATH": os.getcwd()},
                )
            except OSError as error:
                raise PeerError(f"{name}: {error}") from None
        peer = cls(name, process)
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                peer.facts = {k: v for k, v in (await peer._heard())["ready"].items() if v}
        except TimeoutError:
            await peer.stop()
            raise PeerError(f"{name} was not ready within {START_TIMEOUT_S:.0f} s") from None
        except BaseException:
            await peer.stop()
            raise
        return peer

    async def play(self, turn: Turn) -> Played:
        """Wake the driver, let it play, let it sleep again; Raises: PeerError if it fails."""
        self._signal(signal.SIGCONT)
        assert self._process.stdin is not None
        try:
            self._process.stdin.write((json.dumps(asdict(turn)) + "\n").encode())
            await self._process.stdin.drain()
            async with asyncio.timeout(TURN_TIMEOUT_S):
                played = Played.from_json(await self._heard())
        except (OSError, TimeoutError) as error:
            raise PeerError(f"{self.name}: {error!r}") from None
        if self.is_stopped_between_turns:
            self._signal(signal.SIGSTOP)
        return played

    async def settle(self) -> None:
        """See how busy it is without work, and stop it between turns if that is too much.

        Who was stopped before stays so.
        """
        if self.is_stopped_between_turns:
            return
        await asyncio.sleep(SETTLE_S)
        pids = procfs.descendants(self._process.pid)
        used_s = procfs.cpu_s(pids)
        await asyncio.sleep(IDLE_SAMPLE_S)
        self.idle_cores = (procfs.cpu_s(pids) - used_s) / IDLE_SAMPLE_S
        self.is_stopped_between_turns = self.idle_cores > MAX_IDLE_CORES
        if self.is_stopped_between_turns:
            self._signal(signal.SIGSTOP)

    async def stop(self) -> None:
        """End the process and all that it started, by force if need be."""
        self._signal(signal.SIGCONT)
        pids = procfs.descendants(self._process.pid)
        assert self._process.stdin is not None
        self._process.stdin.close()
        with suppress(TimeoutError):
            async with asyncio.timeout(STOP_S):
                await self._process.wait()
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        await self._process.wait()

    async def _heard(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            raise PeerError(f"{self.name} ended; see {_log_path(self.name)}")
        message: dict[str, Any] = json.loads(line)
        if "error" in message:
            raise PeerError(f"{self.name}: {message['error'][:CUT_LINE]}")
        return message

    def _signal(self, number: signal.Signals) -> None:
        # Services of a driver have sessions of their own, so that a group would not reach them.
        for pid in procfs.descendants(self._process.pid):
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def _log_path(name: str) -> Path:
    LOGS.mkdir(parents=True, exist_ok=True)
    return LOGS / f"{name.replace(':', '-')}.log"
