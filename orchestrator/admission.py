"""The bounded queue in front of the decode loop."""

import asyncio
import heapq
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field

from outrider.errors import InvalidField, ResourceExhausted


@dataclass(slots=True)
class Admission:
    """At most ``max_running`` sequences decode, at most ``max_waiting`` wait: by priority, then in
    order of arrival. Every choice of a request is a sequence."""

    max_running: int
    max_waiting: int
    num_running: int = 0
    num_waiting: int = 0
    _queue: list[tuple[int, int, "asyncio.Future[None]"]] = field(default_factory=list)
    """A heap: minus the priority, order of arrival, and what tells that there is a slot."""
    _num_arrivals: int = 0

    @contextmanager
    def places(self, count: int) -> Iterator["Places"]:
        """Hold places for the choices of a request, which count as waiting until they take a slot.

        So a request gets room for all of them or is refused, and none is refused later.

        Raises: ResourceExhausted if there is no room for as many now; InvalidField if there never
            is.
        """
        if count > self._capacity:
            limit = f"at most {self._capacity} run and wait here"
            raise InvalidField("sampling_params.n", f"{count} choices, {limit}")
        self._check_room(count)
        self.num_waiting += count
        places = Places(self, count)
        try:
            yield places
        finally:
            self.num_waiting -= places.num_left

    @asynccontextmanager
    async def slot(
        self, priority: int = 0, *, places: "Places | None" = None
    ) -> AsyncIterator[None]:
        """Hold a slot, waiting for it where there is none; higher priorities go first.

        ``places`` are those of the request; one of them is given up for the slot.

        Raises: ResourceExhausted if there is no place and the queue is full.
        """
        if places is None:
            self._check_room(1)
        else:
            places.give_up_one()
        if self.num_running < self.max_running:
            self.num_running += 1
        else:
            await self._wait(priority)
        try:
            yield
        finally:
            self._hand_on()

    @property
    def _capacity(self) -> int:
        return self.max_running + self.max_waiting

    def _check_room(self, count: int) -> None:
        if self.num_running + self.num_waiting + count > self._capacity:
            limit = f"{self.num_running} requests run and {self.num_waiting} wait"
            raise ResourceExhausted(f"the queue is full: {limit}; retry later")

    async def _wait(self, priority: int) -> None:
        """Return with the slot of a sequence that has ended; it was never free in between."""
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


@dataclass(slots=True)
class Places:
    """Places of one request in the queue that no choice has used yet."""

    admission: Admission
    num_left: int

    def give_up_one(self) -> None:
        """A choice asks for its slot now."""
        assert self.num_left > 0
        self.num_left -= 1
        self.admission.num_waiting -= 1
