"""Whether RPCs may start in this process, and how many run."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum

from outrider.errors import Unavailable

RETRY_AFTER_S = 1.0


class GateState(Enum):
    """What a gate does: only a SERVING one lets RPCs pass, and DRAINING is final."""

    LOADING = "loading"
    SERVING = "serving"
    DRAINING = "draining"


class Gate:
    """Lets RPCs pass while the service serves, and knows when the last one has left."""

    def __init__(self) -> None:
        self.state = GateState.LOADING
        self.num_running = 0
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def passes(self) -> bool:
        return self.state is GateState.SERVING

    def open(self) -> None:
        if self.state is GateState.LOADING:
            self.state = GateState.SERVING

    def close(self) -> None:
        self.state = GateState.DRAINING

    def refusal(self) -> Unavailable:
        """What an RPC is told that may not pass."""
        return Unavailable(f"the service is {self.state.value}", retry_after_s=RETRY_AFTER_S)

    @contextmanager
    def passage(self) -> Iterator[None]:
        """One RPC's stay in the service. Raises: Unavailable unless the service serves."""
        if not self.passes:
            raise self.refusal()
        self.num_running += 1
        self._idle.clear()
        try:
            yield
        finally:
            self.num_running -= 1
            if self.num_running == 0:
                self._idle.set()

    async def drained(self) -> None:
        """Returns once no RPC runs."""
        await self._idle.wait()
