"""Every receipt as a line of JSON in a file, written beside the event loop."""

import os
import queue
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import structlog

MAX_WAITING = 16_384  # receipts that may wait for a slow disk; more are dropped
CLOSE_S = 5.0  # for what still waits at the end
DROP_REASONS = ("queue_full", "not_written")

log = structlog.get_logger()


@dataclass(slots=True)
class ReceiptLog:
    """Appends lines to a file on a thread of its own; what cannot be written is counted, and hurts
    nobody.

    ``to_line`` makes a line, without its end, of a receipt; it runs on the thread.
    """

    path: Path
    to_line: Callable[[Any], str]
    max_waiting: int = MAX_WAITING
    num_written: int = 0
    dropped: Counter[str] = field(default_factory=Counter)
    """Receipts that are not in the file, by why: one of ``DROP_REASONS``."""
    _file: int = -1
    _is_torn: bool = False
    """A write broke off in the middle of a line."""
    _is_failing: bool = False
    _queue: "queue.Queue[Any]" = field(init=False)
    _reopens: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread = field(init=False)

    def __post_init__(self) -> None:
        self._queue = queue.Queue(self.max_waiting)
        self._thread = threading.Thread(target=self._run, name="receipt-log", daemon=True)

    def open(self) -> None:
        """Open the file and start writing.

        Raises: OSError if it cannot be written to.
        """
        try:
            self._file = _opened(self.path)
        except OSError as error:
            raise OSError(f"--receipt-log {self.path}: {error.strerror}") from error
        self._thread.start()

    def add(self, receipt: Any) -> None:
        """Let a receipt be written, soon; never waits."""
        try:
            self._queue.put_nowait(receipt)
        except queue.Full:
            self.dropped["queue_full"] += 1

    def reopen(self) -> None:
        """Close the file and open the one that now has its name, before the next line."""
        self._reopens.set()

    def close(self) -> None:
        """Write what waits, then close the file; gives up after a few seconds."""
        try:
            self._queue.put(None, timeout=CLOSE_S)
        except queue.Full:
            return
        self._thread.join(CLOSE_S)

    def _run(self) -> None:
        while (receipt := self._queue.get()) is not None:
            self._write(receipt)
        if self._file >= 0:
            os.close(self._file)

    def _write(self, receipt: Any) -> None:
        try:
            if self._reopens.is_set() or self._file < 0:
                self._open_anew()
            self._append(f"{self.to_line(receipt)}\n".encode())
        except OSError as error:
            self.dropped["not_written"] += 1
            if not self._is_failing:  # once, not for every receipt
                log.error("receipt_log_failed", path=str(self.path), detail=str(error))
            self._is_failing = True
            return
        self.num_written += 1
        self._is_failing = False

    def _open_anew(self) -> None:
        self._reopens.clear()
        if self._file >= 0:
            os.close(self._file)
            self._file = -1
        self._file, self._is_torn = _opened(self.path), False

    def _append(self, line: bytes) -> None:
        if self._is_torn:
            line = b"\n" + line  # what is torn stays a line of its own
        left = memoryview(line)
        while left:
            num_written = os.write(self._file, left)
            left = left[num_written:]
            self._is_torn = bool(left)


def _opened(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o640)
