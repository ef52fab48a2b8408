"""Receipts of requests that have ended, kept for a while."""

import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from outrider.errors import NotFound


@dataclass(frozen=True, slots=True)
class Kept:
    """The receipts of one request, one for each choice; ``arrived_at_s`` tells requests with the
    same id apart."""

    arrived_at_s: float
    ended_at_s: float
    receipts: tuple[Any, ...]


@dataclass(slots=True)
class ReceiptStore:
    """At most ``max_receipts`` requests, none longer than ``max_age_s``; the oldest go first.

    Receipts are passed on as they are.
    """

    max_receipts: int
    max_age_s: float
    clock: Callable[[], float] = time.monotonic
    _kept: "OrderedDict[str, Kept]" = field(default_factory=OrderedDict)

    def __len__(self) -> int:
        return len(self._kept)

    def add(self, request_id: str, arrived_at_s: float, receipt: Any) -> None:
        """Keep the receipt of a choice; an earlier request of the same id is forgotten."""
        before = self._kept.pop(request_id, None)
        others = before.receipts if before and before.arrived_at_s == arrived_at_s else ()
        self._kept[request_id] = Kept(arrived_at_s, self.clock(), (*others, receipt))
        self._forget()

    def get(self, request_id: str) -> tuple[Any, ...]:
        """Return the receipts of a request; Raises: NotFound."""
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
