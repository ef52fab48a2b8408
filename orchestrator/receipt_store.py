"""Receipts of requests that have ended, kept for a while."""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from outrider.errors import NotFound

MAX_OF_ONE_ID = 128  # receipts; the oldest go first


@dataclass(frozen=True, slots=True)
class Kept:
    """The receipts of one request id: of all choices, and of all requests that bear it."""

    ended_at_s: float
    receipts: tuple[Any, ...]


@dataclass(slots=True)
class ReceiptStore:
    """Of at most ``max_receipts`` ids, none longer than ``max_age_s``; the oldest go first.

    Receipts are passed on as they are.
    """

    max_receipts: int
    max_age_s: float
    clock: Callable[[], float] = time.monotonic
    _kept: "OrderedDict[str, Kept]" = field(default_factory=OrderedDict)

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, request_id: str, receipt: Any) -> None:
        """Keep the receipt of a choice."""
        before = self._kept.pop(request_id, None)
        receipts = (*before.receipts, receipt) if before is not None else (receipt,)
        self._kept[request_id] = Kept(self.clock(), receipts[-MAX_OF_ONE_ID:])
        self._forget()

    def get(self, request_id: str) -> tuple[Any, ...]:
        """Return the receipts of an id, in the order in which they ended; Raises: NotFound."""
        self._forget()
        kept = self._kept.get(request_id)
        if kept is None:
            limit = f"the last {self.max_receipts} are kept for {self.max_age_s:g} s"
            raise NotFound(f"request_id: no receipt of {request_id!r} is there; {limit}")
        return kept.receipts

    def _forget(self) -> None:
        oldest_s = self.clock() - self.max_age_s
        while self._kept:
            first = next(iter(self._kept.values()))
            if len(self._kept) <= self.max_receipts and first.ended_at_s >= oldest_s:
                return
            self._kept.popitem(last=False)
