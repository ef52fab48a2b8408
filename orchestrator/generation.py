"""One request from admission to its receipt."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import structlog

from orchestrator.admission import Admission
from orchestrator.board import DraftBoard
from orchestrator.decode import Cycle, decode
from orchestrator.draft_lease import GrpcDraftLease
from orchestrator.draft_length import DraftLength
from orchestrator.drafting import Drafting
from orchestrator.estimates import Lane
from orchestrator.pressure import Pressure, pressure
from orchestrator.receipt import BlockResult, Stats
from orchestrator.request import Request
from orchestrator.sequence import Event, Sequence, State
from orchestrator.transcript import Transcript
from orchestrator.verification import LeasedVerification
from orchestrator.worker import Worker
from orchestrator.workers import WorkerPool
from outrider import sources
from outrider.lookup.ngram import NgramIndex
from outrider.text import StopMatcher

log = structlog.get_logger()


@dataclass(slots=True)
class Generation:
    """Runs one request; what it counted stays readable when it is over.

    ``timeout_s`` tells what is left of the client's deadline, None without one; ``observe`` is
    called once, when the request has ended.
    """

    request: Request
    pool: WorkerPool
    timeout_s: Callable[[], float | None]
    observe: Callable[["Generation"], None]
    clock: Callable[[], float] = time.monotonic
    stats: Stats = field(default_factory=Stats)
    sequence: Sequence = field(init=False)
    drafter: Worker | None = None
    began: float = field(init=False)
    num_ledger_heals: int = 0
    num_discarded_tokens: int = 0
    was_admitted: bool = False
    was_cancelled: bool = False
    logprobs: list[Any] = field(default_factory=list)
    """Of every output token, where the request asked, as the verifiers told them."""
    prompt_logprobs: Seq[Any] = ()
    pinned_drafter: Worker | None = None
    """The only drafter to be used; None leaves the choice to the pool."""
    _board: DraftBoard = field(default_factory=DraftBoard)
    _holds_drafter: bool = False
    _length: DraftLength = field(init=False)

    def __post_init__(self) -> None:
        self.began = self.clock()
        request = self.request
        self.sequence = Sequence(request.request_id, request.prompt_ids, request.max_length)

    @property
    def elapsed_ms(self) -> float:
        """Milliseconds since the request arrived."""
        return (self.clock() - self.began) * 1e3

    @property
    def outcome(self) -> str:
        """How the request ended: stop, length, cancelled or error."""
        if self.sequence.end is not None:
            return self.sequence.end.reason.value
        return "cancelled" if self.was_cancelled else "error"

    async def run(self, admission: Admission) -> AsyncGenerator[Cycle, None]:
        """Yield each cycle as it is committed; leases are closed whatever happens.

        Raises: ResourceExhausted if the queue is full; Unavailable if the verifier is lost for
            good.
        """
        with self._observed():
            request, right_of_way = self.request, self.pool.right_of_way
            async with admission.slot(request.priority) as queue_ms:
                self.was_admitted, self.stats.queue_ms = True, queue_ms
                verification = LeasedVerification(
                    self.request, self.pool, self.stats, self.timeout_s
                )
                drafting = self._drafting(admission)
                try:
                    steps = decode(
                        self.sequence, verification, drafting, self._transcript(), self.stats
                    )
                    with right_of_way.hold(request.target.key, request.priority):
                        async for cycle in steps:
                            self._keep_logprobs(cycle)
                            self.stats.ttft_ms = self.stats.ttft_ms or self.elapsed_ms
                            yield cycle
                finally:
                    self._close(verification, drafting)

    def _keep_logprobs(self, cycle: Cycle) -> None:
        tokens = cycle.delivery.tokens
        self.logprobs += [each.logprobs for each in tokens if each.logprobs is not None]
        self.prompt_logprobs = self.prompt_logprobs or cycle.verdict.prompt_logprobs

    @contextmanager
    def _observed(self) -> Iterator[None]:
        """Tell of the end, whatever it is."""
        try:
            yield
        except (asyncio.CancelledError, GeneratorExit):
            self.was_cancelled = True
            raise
        finally:
            self.observe(self)

    def _close(self, verification: LeasedVerification, drafting: Drafting) -> None:
        """Close the leases and keep what they counted."""
        if self.sequence.state is not State.FINISHED:
            self.sequence.apply(Event.ABORT)
        verification.close()
        drafting.close()
        self._release_drafter()
        self.num_ledger_heals = verification.num_heals + drafting.num_heals
        self.num_discarded_tokens = self._board.num_discarded_tokens
        self.stats.note_blocks(BlockResult.STALE, self._board.num_stale_blocks)
        self._log_finished()

    def _drafting(self, admission: Admission) -> Drafting:
        request, estimates = self.request, self.pool.estimates
        plan, target = request.plan, request.target.key
        verify = estimates.verify(target)

        def present_pressure() -> Pressure:
            waiting = admission.num_waiting / admission.max_running
            return pressure(verify.queue_share.value, verify.pool_usage, waiting)

        def most_tokens() -> int | None:
            return self.pool.right_of_way.most_tokens(target, request.priority, verify)

        def length(lane: Lane) -> DraftLength:
            limit = max(self.pool.max_draft_tokens(request.target), 1)
            return DraftLength(plan, request.request_id, lane, limit, present_pressure, most_tokens)

        self._length = length(Lane(verify))
        return Drafting(
            plan=plan,
            board=self._board,
            stats=self.stats,
            open_lease=self._open_draft_lease,
            clock=self.clock,
            length=self._length,
            lookup_length=length(estimates.lane(target, "", sources.LOOKUP)),
            index=NgramIndex() if plan.lookup else None,
        )

    def _transcript(self) -> Transcript:
        sampling, codec = self.request.sampling, self.request.target.codec
        assert sampling.max_tokens is not None
        return Transcript(
            stream=codec.stream(
                skip_special_tokens=sampling.skip_special_tokens,
                prompt_ids=self.request.prompt_ids,
            ),
            stops=StopMatcher(sampling.stop),
            stop_token_ids=frozenset(sampling.stop_token_ids),
            max_output_tokens=sampling.max_tokens,
        )

    def _open_draft_lease(self) -> GrpcDraftLease | None:
        """Open a lease on the best drafter for this request, if there is one."""
        self._release_drafter()
        request = self.request
        worker = self.pinned_drafter or self.pool.choose_drafter(
            request.target, request.plan.sources
        )
        if worker is None:
            return None
        self.drafter, self._holds_drafter = worker, True
        worker.num_leases += 1
        source = worker.source_of(request.plan.sources)
        lane = self.pool.estimates.lane(request.target.key, worker.address, source)
        limit = self.pool.max_draft_tokens(request.target, worker)
        self._length.bind(lane, limit)
        return GrpcDraftLease.open(
            worker, self.sequence, request, self._board, self.timeout_s(), lane.draft
        )

    def _release_drafter(self) -> None:
        if self._holds_drafter and self.drafter is not None:
            self.drafter.num_leases -= 1
            self._holds_drafter = False

    def _log_finished(self) -> None:
        """Write the one canonical line of the request."""
        stats, end = self.stats, self.sequence.end
        log.info(
            "request_finished",
            finish_reason=end.reason.value if end is not None else "abort",
            num_prompt_tokens=len(self.request.prompt_ids),
            num_output_tokens=stats.num_output_tokens,
            num_spec_steps=stats.num_spec_steps,
            num_draft_tokens=stats.num_draft_tokens,
            num_accepted_draft_tokens=stats.num_accepted_draft_tokens,
            num_target_passes=stats.num_target_passes,
            fallbacks=dict(stats.fallbacks),
            ttft_ms=round(stats.ttft_ms, 1),
            total_ms=round(self.elapsed_ms, 1),
        )
