"""Streams that go on, one after the other, for as long as something is done to the services."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from outrider.client import Client, Output
from tests.compose.deployment import until
from tests.compose.requests import Answers, Question, ask


@dataclass(slots=True)
class Load:
    """What the streams have brought so far."""

    outputs: list[Output] = field(default_factory=list)
    stopping: bool = False

    async def wait(self, num_more: int) -> None:
        """Wait until so many more requests were answered."""
        wanted = len(self.outputs) + num_more

        async def came() -> bool:
            return len(self.outputs) >= wanted

        await until(came)


async def _stream(
    load: Load, address: str, question: Question, answers: Answers, **how: object
) -> None:
    async with Client(address) as client:
        while not load.stopping:
            load.outputs.append(await ask(client, question, answers, **how))


@asynccontextmanager
async def streams(
    address: str, questions: Sequence[Question], answers: Answers, **how: object
) -> AsyncIterator[Load]:
    """Keep one stream per question busy; each output is compared with the reference.

    Raises: ExceptionGroup with what broke a stream, as soon as it does.
    """
    load = Load()
    async with asyncio.TaskGroup() as group:
        for question in questions:
            group.create_task(_stream(load, address, question, answers, **how))
        try:
            yield load
        finally:
            load.stopping = True
