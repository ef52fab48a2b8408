"""A bound on waits that nearly always end long before it."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self


@dataclass(slots=True)
class Deadline:
    """Bounds one wait after another, each in a ``with`` block; like ``asyncio.timeout`` it raises
    TimeoutError.

    Every cycle of every stream waits a few times, and to set and drop a timer each time would cost
    more than the rest of the wait's bookkeeping. So one timer is kept, and one that goes off too
    early is set anew.
    """

    _ends_at: float = 0.0
    _task: "asyncio.Task[Any] | None" = None
    """Who waits; None between waits."""
    _num_cancelling: int = 0
    _is_over: bool = False
    _left_s: Callable[[], float] | None = None
    _timer: asyncio.TimerHandle | None = None
    _loop: asyncio.AbstractEventLoop | None = None

    def within(self, limit_s: float, left_s: Callable[[], float] | None = None) -> Self:
        """Begin a wait of at most so many seconds; or, within a wait, let it begin anew.

        ``left_s`` is asked at its end whether the wait may go on, and for how long; 0 or less ends
        it.
        """
        self._left_s = left_s
        self._loop = loop = self._loop or asyncio.get_running_loop()
        self._ends_at = loop.time() + limit_s
        if self._timer is not None and self._timer.when() > self._ends_at:
            self.close()
        if self._timer is None:
            self._timer = loop.call_at(self._ends_at, self._ring)
        return self

    def close(self) -> None:
        """Drop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def __enter__(self) -> Self:
        task = asyncio.current_task(self._loop)
        assert task is not None
        assert self._task is None, "one wait at a time"
        self._task, self._num_cancelling, self._is_over = task, task.cancelling(), False
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        task, self._task = self._task, None
        assert task is not None
        if not self._is_over:
            return
        is_ours = task.uncancel() <= self._num_cancelling
        if is_ours and kind is not None and issubclass(kind, asyncio.CancelledError):
            raise TimeoutError from error

    def _ring(self) -> None:
        self._timer = None
        if self._task is None:
            return
        assert self._loop is not None
        if self._loop.time() >= self._ends_at and self._left_s is not None:
            self._ends_at = self._loop.time() + self._left_s()
        if self._loop.time() < self._ends_at:
            self._timer = self._loop.call_at(self._ends_at, self._ring)
        else:
            self._is_over = True
            self._task.cancel()
