"""The choices of one request, side by side; the first one reads the prompt for all."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, field

from orchestrator.admission import Admission, Places
from orchestrator.decode import Cycle
from orchestrator.generation import Generation
from orchestrator.request import Request
from orchestrator.workers import WorkerPool

Turn = tuple[Generation, Cycle | None]
"""A choice and a cycle of it; None: it has ended."""


@dataclass(slots=True)
class Choices:
    """Runs every choice of a request, each as a sequence of its own.

    The first begins alone. With its first verdict its prompt is in the verifier's prefix cache, and
    the others begin, at that verifier if they can. Each takes a slot when there is one, so that
    none waits for another's. ``timeout_s`` and ``observe`` are those of ``Generation``.
    """

    request: Request
    pool: WorkerPool
    timeout_s: Callable[[], float | None]
    observe: Callable[[Generation], None]
    generations: list[Generation] = field(init=False)
    _prompt_is_read: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.generations = [
            Generation(choice, self.pool, self.timeout_s, self.observe)
            for choice in self.request.choices()
        ]

    async def run(self, admission: Admission) -> AsyncGenerator[Turn, None]:
        """Yield the cycles of all choices as they are committed, and each choice when it has ended.

        As many turns as there are choices may wait to be taken: who takes them slowly holds the
        request back. All leases are closed at the end, whatever it is.

        Raises: ResourceExhausted if the queue has no room for all choices; Unavailable if a choice
            loses its verifier for good, which ends the others as well.
        """
        try:
            async with aclosing(self._run(admission)) as turns:
                async for turn in turns:
                    yield turn
        except BaseException as error:
            for generation in self.generations:
                generation.abandon(error)
            raise

    async def _run(self, admission: Admission) -> AsyncGenerator[Turn, None]:
        num_choices = len(self.generations)
        room, turns = asyncio.Semaphore(num_choices), asyncio.Queue[Turn | None]()

        async def tell(turn: Turn) -> None:
            await room.acquire()
            turns.put_nowait(turn)

        with admission.places(num_choices) as places:
            playing = asyncio.create_task(self._play_all(admission, places, tell))
            playing.add_done_callback(lambda _: turns.put_nowait(None))
            try:
                while (turn := await turns.get()) is not None:
                    yield turn
                    room.release()
                await playing
            finally:
                playing.cancel()
                await asyncio.gather(playing, return_exceptions=True)

    async def _play_all(
        self, admission: Admission, places: Places, tell: Callable[[Turn], Awaitable[None]]
    ) -> None:
        async def play(generation: Generation) -> None:
            async with aclosing(generation.run(admission, places)) as cycles:
                async for cycle in cycles:
                    self._prompt_is_read.set()
                    await tell((generation, cycle))
            await tell((generation, None))

        first, *others = self.generations
        if not others:
            await play(first)
            return
        async with asyncio.TaskGroup() as group:
            group.create_task(play(first))
            await self._prompt_is_read.wait()
            for other in others:
                other.preferred_verifier = first.verifier
                group.create_task(play(other))
