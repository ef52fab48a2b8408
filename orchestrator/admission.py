"""The bounded queue in front of the decode loop."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from outrider.errors import ResourceExhausted


@dataclass(slots=True)
class Admission:
    """At most ``max_running`` requests decode, at most ``max_waiting`` wait, in order of
    arrival."""

    max_running: int
    max_waiting: int
    num_running: int = 0
    num_waiting: int = 0
    _slots: asyncio.Semaphore = field(init=False)

    def __post_init__(self) -> None:
        self._slots = asyncio.Semaphore(self.max_running)

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[float]:
        """Hold a slot; yields the milliseconds that were waited for it.

        Raises: ResourceExhausted if the queue is full.
        """
        if self._slots.locked() and self.num_waiting >= self.max_waiting:
            limit = f"{self.num_running} requests run and {self.num_waiting} wait"
            raise ResourceExhausted(f"the queue is full: {limit}; retry later")
        began = time.monotonic()
        self.num_waiting += 1
        try:
            await self._slots.acquire()
        finally:
            self.num_waiting -= 1
        self.num_running += 1
        try:
            yield (time.monotonic() - began) * 1e3
        finally:
            self.num_running -= 1
            self._slots.release()
