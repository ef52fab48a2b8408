"""One thread that runs a draft head for all sequences: what waits is worked on together."""

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch

from drafter_svc.heads.drafting import MAX_LEVEL_WIDTH, HeadDrafting
from drafter_svc.heads.work import Head, num_rows
from outrider.errors import Unavailable
from outrider.proposal import NUM_LISTED, likely, propose
from outrider.sampling import Mode


@dataclass(slots=True, eq=False)
class Submitted:
    """A job from ``submit`` until the engine has let go of it."""

    job: HeadDrafting
    future: "asyncio.Future[None]"
    loop: asyncio.AbstractEventLoop
    cancelled: bool = False

    async def result(self) -> None:
        """Return when the job is done; one that is not waited for any more ends early.

        Raises: Unavailable, or what its pass raised.
        """
        try:
            await asyncio.shield(self.future)
        except asyncio.CancelledError:
            self.cancelled = True
            raise

    async def left(self) -> None:
        """Return when the engine has let go of it, however it ended."""
        if not self.future.done():
            await asyncio.wait([self.future])

    def resolve(self, error: BaseException | None = None) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self.loop.call_soon_threadsafe(_settle, self.future, error)


class HeadEngine:
    """Runs drafting jobs pass by pass; ``run`` may be called from any event loop.

    ``draft_ids`` [D] int64, ascending: the target ids that the head's logits stand for.
    """

    def __init__(
        self, head: Head, draft_ids: torch.Tensor, *, num_listed: int = NUM_LISTED
    ) -> None:
        self.head = head
        self._draft_ids = draft_ids
        self._num_listed = num_listed
        self._changed = threading.Condition()
        self._arrivals: list[Submitted] = []
        self._closing = False
        self._thread: threading.Thread | None = None
        self.num_passes = 0

    def start(self) -> None:
        """Begin to serve."""
        self._thread = threading.Thread(target=self._serve, name="head", daemon=True)
        self._thread.start()

    async def close(self) -> None:
        """Stop after the present pass; jobs still waiting fail with Unavailable."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
            self._thread = None

    def submit(self, job: HeadDrafting) -> "Submitted":
        """Hand a job over; Raises: Unavailable while closing."""
        loop = asyncio.get_running_loop()
        entry = Submitted(job, loop.create_future(), loop)
        with self._changed:
            if self._closing:
                raise Unavailable("the drafter is closing")
            self._arrivals.append(entry)
            self._changed.notify()
        return entry

    def _serve(self) -> None:
        entries: list[Submitted] = []
        with torch.inference_mode():
            while True:
                with self._changed:
                    while not entries and not self._arrivals and not self._closing:
                        self._changed.wait()
                    entries += self._arrivals
                    self._arrivals = []
                    if self._closing:
                        break
                entries = self._pass(entries)
        for each in entries:
            each.resolve(Unavailable("the drafter is closing"))

    def _pass(self, entries: list[Submitted]) -> list[Submitted]:
        """Run one pass of all jobs; return those that are not done.

        A pass that fails is tried again job by job, so that one cannot take others with it.
        """
        waiting: list[Submitted] = []
        for each in entries:
            if each.job.is_done or (each.cancelled and not each.job.must_run):
                each.resolve()
            else:
                waiting.append(each)
        if not waiting:
            return []
        try:
            self._advance([each.job for each in waiting])
        except Exception as error:
            if len(waiting) == 1:
                waiting[0].resolve(error)
                return []
            return [left for each in waiting for left in self._pass([each])]
        return waiting

    def _advance(self, jobs: Sequence[HeadDrafting]) -> None:
        began = time.monotonic()
        working = [(job, job.work) for job in jobs if job.work is not None]
        if working:
            works = [work for _, work in working]
            logits = torch.split(self.head.forward(works), [num_rows(work) for work in works])
            for (job, _), rows in zip(working, logits, strict=True):
                job.take_logits(rows)
        groups: dict[tuple[Mode, int, bool], list[HeadDrafting]] = defaultdict(list)
        for job in jobs:
            if job.num_drawn:
                law = (job.opening.mode, job.opening.vocab_size, job.makes_trees)
                groups[law].append(job)
        for (mode, vocab_size, makes_trees), group in groups.items():
            self._draw(mode, vocab_size, makes_trees, group)
        self.num_passes += 1
        elapsed_ms = (time.monotonic() - began) * 1e3
        for job in jobs:
            job.compute_ms += elapsed_ms

    def _draw(
        self, mode: Mode, vocab_size: int, makes_trees: bool, jobs: Sequence[HeadDrafting]
    ) -> None:
        logits = torch.cat([job.drawn for job in jobs if job.drawn is not None])
        rows = [row for job in jobs for row in job.rows()]
        places = [place for job in jobs for place in job.places()]
        if not makes_trees:
            proposals = propose(
                logits,
                rows,
                places,
                mode=mode,
                vocab_size=vocab_size,
                num_listed=self._num_listed,
                draft_ids=self._draft_ids,
            )
            for job, proposal in zip(jobs, proposals, strict=True):
                job.take(proposal)
            return
        found = likely(
            logits,
            rows,
            places,
            mode=mode,
            vocab_size=vocab_size,
            num_ids=MAX_LEVEL_WIDTH,
            draft_ids=self._draft_ids,
        )
        begin = 0
        for job in jobs:
            end = begin + job.num_drawn
            job.take_likely(found[begin:end])
            begin = end


def _settle(future: "asyncio.Future[None]", error: BaseException | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
