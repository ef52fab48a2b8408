"""What Ctrl-C means to a command that runs services."""

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console


@contextmanager
def cancelled_by_signals(console: Console) -> Iterator[None]:
    """Let SIGINT and SIGTERM cancel the current task, and say so.

    The first one lets it stop in good order; the next one cancels that too.
    """
    task = asyncio.current_task()
    assert task is not None
    loop = asyncio.get_running_loop()

    def cancel() -> None:
        console.print("\nstopping at once" if task.cancelling() else "\nstopping")
        task.cancel()

    numbers = (signal.SIGINT, signal.SIGTERM)
    for number in numbers:
        loop.add_signal_handler(number, cancel)
    try:
        yield
    finally:
        for number in numbers:
            loop.remove_signal_handler(number)
