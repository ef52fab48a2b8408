"""What SIGTERM and SIGINT mean to a service."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """First signal: stop in good order. Second: end the grace period. Third: its default effect.

    While the service loads there is nothing to finish, so the first one cancels the task that
    entered, until ``loaded`` is called.
    """

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        self.hurried = asyncio.Event()
        self.interrupted_loading = False
        self._loading: asyncio.Task[object] | None = None

    def __enter__(self) -> "StopSignals":
        self._loading = asyncio.current_task()
        for number in STOP_SIGNALS:
            asyncio.get_running_loop().add_signal_handler(number, self._receive)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._restore()

    def loaded(self) -> None:
        """From here on the first signal only sets ``requested``."""
        self._loading = None

    def _receive(self) -> None:
        if self.requested.is_set():
            self.hurried.set()
            self._restore()
            return
        self.requested.set()
        if self._loading is not None:
            self.interrupted_loading = True
            self._loading.cancel()

    def _restore(self) -> None:
        for number in STOP_SIGNALS:
            asyncio.get_running_loop().remove_signal_handler(number)


@contextmanager
def on_hangup(call: Callable[[], None]) -> Iterator[None]:
    """Let SIGHUP mean a call on the event loop, in place of the end of the process."""
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, call)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)
