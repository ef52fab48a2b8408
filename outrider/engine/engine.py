"""Continuous batching over one model: jobs in, packed passes, heads called with the logits.

The life of a job:
1. ``run`` hands it to the engine's thread and waits.
2. Before its first pass the thread asks it for its input, keeps the part that its cache already
   holds (or adopts blocks that another sequence has committed), and reserves blocks for the rest.
3. Passes feed it: whole if it is short, in chunks beside the running streams if it is a prompt.
4. When its input is through, the head decides: done, or one more input.
Blocks of idle leases are preempted when the pool is full; their next job finds its cache too short.
"""

import asyncio
import threading
import time
from collections import Counter, deque
from collections.abc import Callable

import torch

from outrider.engine.admission import Admission
from outrider.engine.cache import SequenceCache
from outrider.engine.entry import Entry, resolve_all
from outrider.engine.errors import UnsupportedModel
from outrider.engine.job import Finished, Head, Job
from outrider.engine.ledger import BlockLedger
from outrider.engine.model import LoadedModel
from outrider.engine.packed import PackedModel
from outrider.engine.plan import Slice, StepPlan
from outrider.engine.pool import KVPool
from outrider.engine.scheduler import choose
from outrider.engine.selftest import SelfTestReport, prepare
from outrider.engine.settings import EngineSettings
from outrider.engine.stats import EngineStats
from outrider.engine.taps import Taps, features_of
from outrider.errors import Unavailable


class Engine:
    """Runs jobs of many sequences on one thread; its public methods may be called from any.

    Raises: ``start`` raises UnsupportedModel with the reason if the model cannot be served.
    """

    report: SelfTestReport

    def __init__(
        self,
        model: LoadedModel,
        settings: EngineSettings,
        head: Head,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.model = model
        self.settings = settings
        self._head = head
        self._clock = clock
        self._changed = threading.Condition()
        self._arrivals: deque[Entry] = deque()
        self._released: deque[SequenceCache] = deque()
        self._closing = False
        self._entries: list[Entry] = []
        self._expected: set[int] = set()  # ids of caches whose streams are likely to come back
        self._gather_until = 0.0
        self._num_arrivals = 0
        self._num_passes = self._num_rows = 0
        self._passes_by_rows: Counter[int] = Counter()
        self._compute_s = 0.0
        self._last_pass_ms, self._last_pass_rows = 0.0, 0
        self._thread: threading.Thread | None = None
        self._packed: PackedModel
        self._pool: KVPool
        self._admission: Admission

    def start(self) -> None:
        """Test the model, lay out the pool and begin to serve; blocks until then."""
        ready: list[BaseException | None] = []
        signal = threading.Event()

        def main() -> None:
            try:
                with torch.inference_mode():
                    self._prepare()
            except BaseException as error:
                ready.append(error)
                signal.set()
                return
            ready.append(None)
            signal.set()
            with torch.inference_mode():
                self._serve()

        self._thread = threading.Thread(target=main, name="engine", daemon=True)
        self._thread.start()
        signal.wait()
        if ready[0] is not None:
            self._thread.join()
            self._thread = None
            raise ready[0]

    async def close(self) -> None:
        """Stop after the present pass; jobs still waiting fail with Unavailable."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join)
            self._thread = None

    def open(self, *, salt: str) -> SequenceCache:
        """The cache of a new lease; prefixes are shared with caches of the same salt only."""
        return SequenceCache(self._admission.ledger, block_size=self.settings.block_size, salt=salt)

    def release(self, cache: SequenceCache) -> None:
        """End a lease; its blocks lose their owner before the next pass but one."""
        with self._changed:
            self._released.append(cache)
            self._changed.notify()

    async def run(self, job: Job) -> None:
        """Return when the job is done.

        Raises: CacheTooShort, OutOfBlocks, InvalidField, Unavailable, or what its pass raised.
        """
        loop = asyncio.get_running_loop()
        entry = Entry(job, loop.create_future(), loop, 0, self._clock())
        with self._changed:
            if self._closing:
                raise Unavailable("the engine is closing")
            self._num_arrivals += 1
            entry.arrival = self._num_arrivals
            self._arrivals.append(entry)
            self._changed.notify()
        try:
            await entry.future
        except asyncio.CancelledError:
            entry.cancelled = True
            raise

    @property
    def max_tap(self) -> int | None:
        """The largest layer that a job may tap: the number of layers; None where there is none."""
        try:
            return Taps(self.model).num_layers
        except UnsupportedModel:
            return None

    def stats(self) -> EngineStats:
        ledger, admission = self._admission.ledger, self._admission
        entries = list(self._entries)  # once: the engine's thread takes some out meanwhile
        running = sum(entry.admitted for entry in entries)
        return EngineStats(
            num_passes=self._num_passes,
            num_rows=self._num_rows,
            num_blocks_used=ledger.num_used,
            num_blocks_free=ledger.num_free,
            num_blocks_evictable=ledger.num_evictable,
            num_prefix_hit_tokens=admission.num_prefix_hit_tokens,
            num_prefix_looked_up_tokens=admission.num_prefix_looked_up_tokens,
            num_preemptions=admission.num_preemptions,
            num_running=running,
            num_waiting=len(self._arrivals) + len(entries) - running,
            last_pass_ms=self._last_pass_ms,
            last_pass_rows=self._last_pass_rows,
            compute_s=self._compute_s,
            passes_by_rows=dict(self._passes_by_rows),
        )

    def check_integrity(self) -> None:
        """Assert that block tables and ledger agree; for tests, while nothing runs."""
        self._admission.check_integrity()

    # ------------------------------------------------------------ the engine's thread

    def _prepare(self) -> None:
        self._packed, trial, self.report = prepare(self.model, self.settings)
        num_blocks = self.settings.num_blocks
        if num_blocks is None:
            num_blocks = max(1, self.settings.kv_cache_bytes // trial.block_bytes)
        self._pool = trial.resized(num_blocks)
        self._admission = Admission(
            BlockLedger(num_blocks), self._pool, max_context_length=self.model.max_context_length
        )

    def _serve(self) -> None:
        while self._wait_for_work():
            try:
                self._admission.admit(self._entries, fail=self._fail)
                chosen = choose([e for e in self._entries if e.admitted], self.settings)
                if chosen:
                    self._pass(chosen)
            except Exception as error:  # our own fault: nobody may be left waiting for it
                for entry in list(self._entries):
                    self._fail(entry, error)
        for entry in (*self._entries, *self._arrivals):
            entry.resolve(Unavailable("the engine is closing"))
        self._packed.detach()

    def _wait_for_work(self) -> bool:
        """Take in what arrived; returns False when it is time to end."""
        with self._changed:
            while not (self._closing or self._arrivals or self._released or self._entries):
                self._changed.wait()
            self._gather()
            if self._closing:
                return False
            arrivals, released = list(self._arrivals), list(self._released)
            self._arrivals.clear()
            self._released.clear()
        self._entries = [entry for entry in self._entries if not entry.cancelled]
        for cache in released:
            for entry in [e for e in (*self._entries, *arrivals) if e.job.cache is cache]:
                self._fail(entry, asyncio.CancelledError("the lease has ended"))
            arrivals = [entry for entry in arrivals if entry.job.cache is not cache]
            self._admission.close(cache)
        for entry in arrivals:
            entry.job.cache.note_return(entry.arrived_s)
            if entry.cancelled:
                continue
            if any(other.job.cache is entry.job.cache for other in self._entries):
                self._fail(entry, RuntimeError("a sequence runs one job at a time"))
            else:
                self._entries.append(entry)
        return True

    def _gather(self) -> None:
        """Give the streams of the last pass a moment to come back, so that they share the next."""
        while self._expected and not self._closing:
            here = {id(e.job.cache) for e in (*self._arrivals, *self._entries)}
            gone = {id(cache) for cache in self._released}
            left = self._gather_until - self._clock()
            if left <= 0 or not self._expected - here - gone:
                break
            self._changed.wait(left)
        self._expected = set()

    def _pass(self, chosen: list[tuple[Entry, int]]) -> None:
        begin = self._clock()
        slices = [entry.slice(count) for entry, count in chosen]
        for entry, _ in chosen:
            entry.started_s = begin if entry.started_s is None else entry.started_s
        try:
            self._fill_branches(slices)
            plan = StepPlan.build(
                slices, block_size=self.settings.block_size, device=self.model.device
            )
            logits, states = self._packed.forward(plan, self._pool)
            features = features_of(slices, states)
            if self.model.device.type == "cuda":  # else the clock would stop before the GPU does
                torch.cuda.synchronize(self.model.device)
        except Exception as error:
            if len(chosen) == 1:
                self._fail(chosen[0][0], error)
            else:  # one of them is the culprit; lengths have not moved, so each may try again
                for one in chosen:
                    self._pass([one])
            return
        for part in slices:
            part.cache.extend(part.kept_ids)
        elapsed_ms = (self._clock() - begin) * 1e3
        self._num_passes += 1
        self._num_rows += plan.num_rows
        self._passes_by_rows[plan.num_rows] += 1
        self._compute_s += elapsed_ms * 1e-3
        self._last_pass_ms, self._last_pass_rows = elapsed_ms, plan.num_rows
        through = []
        parts = torch.split(logits, [part.num_logit_rows for part in slices])
        for (entry, _), rows, tapped in zip(chosen, parts, features, strict=True):
            entry.passes += 1
            entry.compute_ms += elapsed_ms
            entry.rows_in_pass = plan.num_rows
            entry.logits.append(rows)
            if tapped is not None:
                entry.features.append(tapped)
            self._admission.touch(entry)
            if entry.rows_left == 0 and not entry.cancelled:
                through.append(entry)
        gather_s = min(
            self.settings.gather_ms * 1e-3, self.settings.gather_fraction * elapsed_ms * 1e-3
        )
        if through:
            self._finish(through, gather_s)
        self._gather_until = self._clock() + gather_s

    def _fill_branches(self, slices: list[Slice]) -> None:
        """Give the paths of trees what their first blocks hold of the sequence already."""
        size = self.settings.block_size
        for part in slices:
            block, inside = divmod(part.base, size)
            if part.tree and part.cache.branches and inside and part.cache.length > block * size:
                targets = [branch[0] for branch in part.cache.branches]
                self._packed.copy_block(self._pool, part.cache.table[block], targets)

    def _finish(self, through: list[Entry], gather_s: float) -> None:
        """Let the head decide about jobs whose input is through.

        A sequence is expected back for the next pass if it usually comes within ``gather_s``.
        """
        finished = [_finished(entry) for entry in through]
        failed: dict[int, Exception] = {}
        try:
            self._head(finished)
        except Exception:
            for index, (entry, item) in enumerate(zip(through, finished, strict=True)):
                if entry.job.done or entry.job.next is not None:
                    continue
                try:
                    self._head([item])
                except Exception as error:
                    failed[index] = error
        done: list[Entry] = []
        for index, entry in enumerate(through):
            entry.job.cache.drop_branches()
            following, entry.job.next = entry.job.next, None
            if index in failed:
                self._fail(entry, failed[index])
            elif entry.job.done:
                cache = entry.job.cache
                cache.finished_s = self._clock()
                if cache.return_s <= gather_s:
                    self._expected.add(id(cache))
                self._entries.remove(entry)
                done.append(entry)
            elif following is not None:
                entry.take_input(following)
            else:
                self._fail(entry, RuntimeError("the head left a job neither done nor with more"))
        resolve_all(done)

    def _fail(self, entry: Entry, error: BaseException) -> None:
        if entry in self._entries:
            self._entries.remove(entry)
            entry.job.cache.drop_branches()
        entry.resolve(error)


def _finished(entry: Entry) -> Finished:
    started = entry.arrived_s if entry.started_s is None else entry.started_s
    logits = entry.logits[0] if len(entry.logits) == 1 else torch.cat(entry.logits)
    return Finished(
        job=entry.job,
        logits=logits,
        passes=entry.passes,
        queue_ms=(started - entry.arrived_s) * 1e3,
        compute_ms=entry.compute_ms,
        rows_in_pass=entry.rows_in_pass,
        cached_tokens=entry.cached_tokens,
        features=torch.cat(entry.features) if entry.features else None,
    )
