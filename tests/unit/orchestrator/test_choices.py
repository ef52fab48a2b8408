"""Choices side by side: who begins when, who is held back, and what ends all of them.

In place of the sequences stand generators whose cycles are numbers.
"""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import pytest

from orchestrator.admission import Admission, Places
from orchestrator.choices import Choices
from orchestrator.workers import WorkerPool
from outrider.errors import ResourceExhausted, Unavailable
from outrider.sampling import SamplingParams
from tests.unit.orchestrator.test_admission_of_requests import request

LOST = Unavailable("the verifier was lost")


@dataclass(eq=False)
class Scripted:
    """A sequence of so many cycles, which may fail before one of them."""

    index: int
    log: list[tuple[int, Any]]
    num_cycles: int = 3
    fails_at: int | None = None
    verifier: str = ""
    preferred_verifier: str | None = None
    held: asyncio.Event = field(default_factory=asyncio.Event)
    """Set: the first cycle may end."""

    def __post_init__(self) -> None:
        self.verifier = f"v{self.index}"
        self.held.set()

    def abandon(self, error: BaseException) -> None:
        self.log.append((self.index, f"abandoned: {error!r}"))

    async def run(self, admission: Admission, places: Places) -> AsyncGenerator[int, None]:
        try:
            async with admission.slot(places=places):
                self.log.append((self.index, "began"))
                await self.held.wait()
                for cycle in range(self.num_cycles):
                    await asyncio.sleep(0)
                    if cycle == self.fails_at:
                        raise LOST
                    self.log.append((self.index, cycle))
                    yield cycle
        finally:
            self.log.append((self.index, "closed"))


def choices(count: int, **changed: Any) -> tuple[Choices, list[Scripted], list[tuple[int, Any]]]:
    made = Choices(
        request(sampling=SamplingParams(n=count)), WorkerPool([]), lambda: None, lambda _: None
    )
    log: list[tuple[int, Any]] = []
    scripted = [Scripted(index, log, **changed) for index in range(count)]
    made.generations = scripted  # type: ignore[assignment]
    return made, scripted, log


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


async def taken(
    made: Choices, admission: Admission, into: list[tuple[int, Any]] | None = None
) -> list[tuple[int, Any]]:
    got: list[tuple[int, Any]] = [] if into is None else into
    async with aclosing(made.run(admission)) as turns:
        async for one, cycle in turns:
            got.append((one.index, cycle))  # type: ignore[attr-defined]
    return got


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("max_running", [1, 2, 8])
async def test_every_cycle_and_every_end_is_told_once_and_in_order(count, max_running):
    made, scripted, _ = choices(count)
    admission = Admission(max_running, 8)
    turns = await taken(made, admission)
    for index in range(count):
        assert [cycle for each, cycle in turns if each == index] == [0, 1, 2, None]
    assert (admission.num_running, admission.num_waiting) == (0, 0)
    assert [each.preferred_verifier for each in scripted] == [None, *["v0"] * (count - 1)]


async def test_the_others_begin_when_the_first_has_read_the_prompt():
    made, scripted, log = choices(3)
    scripted[0].held.clear()
    admission = Admission(8, 0)
    run = asyncio.create_task(taken(made, admission))
    await settle()
    assert log == [(0, "began")]
    assert (admission.num_running, admission.num_waiting) == (1, 2), "their room is kept"
    scripted[0].held.set()
    await run
    began = [entry for entry in log if entry[1] == "began"]
    assert began == [(0, "began"), (1, "began"), (2, "began")]
    assert log.index((1, "began")) > log.index((0, 0))


@pytest.mark.parametrize("count", [1, 2])
async def test_choices_that_find_the_queue_full_are_counted_as_failed(count):
    outcomes: list[str] = []
    made = Choices(
        request(sampling=SamplingParams(n=count)),
        WorkerPool([]),
        lambda: None,
        lambda generation: outcomes.append(generation.outcome),
    )
    admission = Admission(1, 1)
    async with admission.slot():
        with admission.places(1), pytest.raises(ResourceExhausted):
            await taken(made, admission)
    assert outcomes == ["error"] * count


@pytest.mark.parametrize("count", [1, 3])
async def test_nobody_runs_further_ahead_of_the_reader_than_one_cycle_each(count):
    made, _, log = choices(count, num_cycles=50)
    async with aclosing(made.run(Admission(8, 8))) as turns:
        for num_taken in range(1, 20):
            await anext(turns)
            await settle()
            num_done = sum(isinstance(entry[1], int) for entry in log)
            # Told and not taken: one a choice. Beyond that: one a choice that waits to be told.
            assert num_done <= num_taken + 2 * count


@pytest.mark.parametrize("fails_at", [0, 2])
@pytest.mark.parametrize("loser", [0, 1, 2])
async def test_the_failure_of_one_ends_all(loser, fails_at):
    made, scripted, log = choices(3, num_cycles=1000)
    scripted[loser].fails_at = fails_at
    admission = Admission(8, 8)
    got: list[tuple[int, Any]] = []
    with pytest.raises((Unavailable, ExceptionGroup)) as raised:
        await taken(made, admission, got)
    error = raised.value
    assert error is LOST or (isinstance(error, ExceptionGroup) and error.exceptions == (LOST,))
    assert [cycle for index, cycle in got if index == loser] == list(range(fails_at)), (
        "what was committed before is told"
    )
    begun = {index for index, what in log if what == "began"}
    assert begun == ({0} if (loser, fails_at) == (0, 0) else {0, 1, 2})
    assert {index for index, what in log if what == "closed"} == begun
    assert (admission.num_running, admission.num_waiting) == (0, 0)


@pytest.mark.parametrize("num_taken", [0, 1, 7])
async def test_who_leaves_closes_all(num_taken):
    made, scripted, log = choices(3, num_cycles=1000)
    admission = Admission(2, 8)
    if not num_taken:
        scripted[0].held.clear()
        run = asyncio.create_task(taken(made, admission))
        await settle()
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)
    else:
        async with aclosing(made.run(admission)) as turns:
            for _ in range(num_taken):
                await anext(turns)
    begun = {index for index, what in log if what == "began"}
    assert begun <= {index for index, what in log if what == "closed"}
    assert (admission.num_running, admission.num_waiting) == (0, 0)
    assert len(asyncio.all_tasks()) == 1
