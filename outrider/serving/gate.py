"""Whether RPCs may start in this process, and which ones run."""

import asyncio
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from enum import Enum

from outrider.errors import Unavailable

RETRY_AFTER_S = 1.0


class GateState(Enum):
    """What a gate lets pass: LOADING early RPCs alone, SERVING all, DRAINING none for good."""

    LOADING = "loading"
    SERVING = "serving"
    DRAINING = "draining"


class Gate:
    """Lets RPCs pass while the service serves, and knows when the last one has left."""

    def __init__(self) -> None:
        self.state = GateState.LOADING
        self._early: Collection[str] = ()
        self._obstacle: Callable[[], str] | None = None
        self._running: set[asyncio.Task[object]] = set()
        self._cut: set[asyncio.Task[object]] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    @property
    def num_running(self) -> int:
        """RPCs that have passed and not left."""
        return len(self._running)

    def passes(self, rpc: str) -> bool:
        """Whether an RPC of this name (/package.Service/Method) may start now."""
        if self.state is GateState.LOADING:
            return rpc in self._early
        return self.state is GateState.SERVING

    def wait(self, early: Collection[str], obstacle: Callable[[], str]) -> None:
        """Let early RPCs pass while loading, and tell the others what the service waits for."""
        self._early, self._obstacle = early, obstacle

    def open(self) -> None:
        if self.state is GateState.LOADING:
            self.state = GateState.SERVING

    def close(self) -> None:
        self.state = GateState.DRAINING

    def cut(self) -> int:
        """End all RPCs that run, with UNAVAILABLE; returns how many there are."""
        for task in self._running:
            if not task.cancelling():
                self._cut.add(task)
                task.cancel()
        return len(self._cut)

    def refusal(self) -> Unavailable:
        """What an RPC is told that may not pass."""
        reason = f"the service is {self.state.value}"
        if self.state is GateState.LOADING and self._obstacle is not None:
            reason = self._obstacle()
        return Unavailable(reason, retry_after_s=RETRY_AFTER_S)

    @contextmanager
    def passage(self, rpc: str) -> Iterator[None]:
        """One RPC's stay in the service, in a task of its own.

        Raises: Unavailable if it may not pass, or was cut.
        """
        if not self.passes(rpc):
            raise self.refusal()
        task = asyncio.current_task()
        assert task is not None
        self._running.add(task)
        self._idle.clear()
        try:
            yield
        except asyncio.CancelledError:
            if task not in self._cut:
                raise
            raise Unavailable("the service is shutting down", retry_after_s=RETRY_AFTER_S) from None
        finally:
            self._running.discard(task)
            if not self._running:
                self._idle.set()

    async def drained(self) -> None:
        """Returns once no RPC runs."""
        await self._idle.wait()
