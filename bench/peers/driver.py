"""The driver's side of the protocol: waits for turns, plays them, measures."""

import asyncio
import json
import os
import sys
import time
from dataclasses import asdict
from typing import Protocol, TextIO

from bench.peers import procfs
from bench.peers.turn import Answer, Played, Turn


class Driver(Protocol):
    """One engine."""

    async def start(self) -> dict[str, str]:
        """Load everything; return what is worth knowing, such as versions."""

    async def answer(self, turn: Turn, index: int) -> Answer:
        """Answer one prompt of a turn; called for as many at once as the turn has streams."""

    def pids(self, mode: str) -> list[int]:
        """Return the processes that a mode needs."""

    async def stop(self) -> None:
        """End what was started."""


def serve(driver: Driver) -> None:
    """Serve until standard input ends."""
    # Libraries print what they like; the protocol keeps the only way to the old standard output.
    output = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    asyncio.run(_serve(driver, output))


async def _serve(driver: Driver, output: TextIO) -> None:
    def say(message: dict[str, object]) -> None:
        output.write(json.dumps(message) + "\n")
        output.flush()

    try:
        say({"ready": await driver.start()})
        while line := await asyncio.to_thread(sys.stdin.readline):
            played = await play(driver, Turn(**json.loads(line)))
            say(asdict(played))
    except Exception as error:
        say({"error": f"{type(error).__name__}: {error}"})
        raise
    finally:
        await driver.stop()


async def play(driver: Driver, turn: Turn) -> Played:
    """Answer all prompts, the next one as soon as a stream is free."""
    answers: dict[int, Answer] = {}
    waiting = iter(range(len(turn.prompts)))

    async def stream() -> None:
        for index in waiting:
            answers[index] = await driver.answer(turn, index)

    pids = driver.pids(turn.mode)
    procfs.reset_peaks(pids)
    began, used_s = time.perf_counter(), procfs.cpu_s(pids)
    await asyncio.gather(*(stream() for _ in range(turn.num_streams)))
    wall_s = time.perf_counter() - began
    return Played(
        answers=[answers[index] for index in range(len(turn.prompts))],
        wall_s=wall_s,
        cpu_s=procfs.cpu_s(pids) - used_s,
        peak_rss_bytes=procfs.peak_rss_bytes(pids),
    )
