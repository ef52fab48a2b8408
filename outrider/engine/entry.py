"""The engine's own state of a job."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

import torch

from outrider.engine.job import Job, JobInput
from outrider.engine.plan import Slice


@dataclass(slots=True)
class Entry:
    """A job from ``run`` until it is done, failed or cancelled."""

    job: Job
    future: asyncio.Future[None]
    loop: asyncio.AbstractEventLoop
    arrival: int
    arrived_s: float
    input: JobInput | None = None
    admitted: bool = False
    """Blocks for the whole input are reserved."""
    looked_up: bool = False
    cancelled: bool = False
    started_s: float | None = None
    passes: int = 0
    compute_ms: float = 0.0
    rows_in_pass: int = 0
    cached_tokens: int = 0
    logits: list[torch.Tensor] = field(default_factory=list)
    features: list[torch.Tensor] = field(default_factory=list)

    @property
    def order(self) -> tuple[int, int]:
        return (self.job.priority, self.arrival)

    @property
    def rows_left(self) -> int:
        assert self.input is not None
        if self.input.tree is not None and self.job.cache.length > self.input.base:
            return 0  # the tree has been fed, and the sequence holds its first path
        return self.input.end - self.job.cache.length

    @property
    def num_together(self) -> int:
        """Nodes of a tree that is still to be fed."""
        assert self.input is not None
        return len(self.input.tree.parents) if self.input.tree and self.rows_left else 0

    def fitting(self, count: int) -> int:
        """Rows that a pass can take of at most ``count``: a tree goes in as a whole."""
        assert self.input is not None
        if count >= self.rows_left:
            return self.rows_left
        return max(0, min(count, self.input.base - self.job.cache.length))

    def slice(self, count: int) -> Slice:
        """Return the next ``count`` rows."""
        assert self.input is not None
        cache, begin = self.job.cache, self.job.cache.length
        first_logit = self.input.end - self.input.num_logit_rows
        ids = list(
            self.input.token_ids[begin - self.input.start : begin - self.input.start + count]
        )
        num_logit_rows = max(0, min(count, begin + count - first_logit))
        tree = self.input.tree if begin + count > self.input.base else None
        return Slice(cache, ids, num_logit_rows, tree, self.input.taps)

    def take_input(self, given: JobInput) -> None:
        """Begin with an input; the job's counters run on."""
        self.input, self.admitted = given, False
        self.forget_rows()

    def forget_rows(self) -> None:
        """Drop what passes gave so far; the input is fed from the beginning."""
        self.logits, self.features = [], []

    def resolve(self, error: BaseException | None) -> None:
        """Wake the awaiting task, from any thread."""
        try:
            self.loop.call_soon_threadsafe(_settle, self.future, error)
        except RuntimeError:  # the loop is closed: nobody waits any more
            return


def resolve_all(entries: Sequence[Entry]) -> None:
    """Wake the tasks that await these jobs, with one wake-up for each event loop."""
    by_loop: dict[asyncio.AbstractEventLoop, list[Entry]] = {}
    for entry in entries:
        by_loop.setdefault(entry.loop, []).append(entry)
    for loop, group in by_loop.items():
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(_settle_all, [entry.future for entry in group])


def _settle_all(futures: Sequence[asyncio.Future[None]]) -> None:
    for future in futures:
        _settle(future, None)


def _settle(future: asyncio.Future[None], error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
