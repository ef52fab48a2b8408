"""The bounded queue in front of the decode loop."""

import asyncio
import heapq
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from outrider.errors import ResourceExhausted


@dataclass(slots=True)
class Admission:
    """At most ``max_running`` requests decode, at most ``max_waiting`` wait: by priority, then in
    order of arrival."""

    max_running: int
    max_waiting: int
    num_running: int = 0
    num_waiting: int = 0
    _queue: list[tuple[int, int, "asyncio.Future[None]"]] = field(default_factory=list)
    """A heap: minus the priority, order of arrival, and what tells that there is a slot."""
    _num_arrivals: int = 0

    @asynccontextmanager
    async def slot(self, priority: int = 0) -> AsyncIterator[float]:
        """Hold a slot; yields the milliseconds that were waited for it. Higher priorities go first.

        Raises: ResourceExhausted if the queue is full.
        """
        began = time.monotonic()
        if self.num_running < self.max_running:
            self.num_running += 1
        else:
            await self._wait(priority)
        try:
            yield (time.monotonic() - began) * 1e3
        finally:
            self._hand_on()

    async def _wait(self, priority: int) -> None:
        """Return with the slot of a request that has ended; it was never free in between."""
        if self.num_waiting >= self.max_waiting:
            limit = f"{self.num_running} requests run and {self.num_waiting} wait"
            raise ResourceExhausted(f"the queue is full: {limit}; retry later")
        granted = asyncio.get_running_loop().create_future()
        self._num_arrivals += 1
        heapq.heappush(self._queue, (-priority, self._num_arrivals, granted))
        self.num_waiting += 1
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self._hand_on()
            raise
        finally:
            self.num_waiting -= 1

    def _hand_on(self) -> None:
        """Give a slot to the first that still waits, else free it."""
        while self._queue:
            granted = heapq.heappop(self._queue)[2]
            if not granted.done():
                granted.set_result(None)
                return
        self.num_running -= 1
