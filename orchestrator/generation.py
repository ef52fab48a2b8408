"""One choice of a request from admission to its receipt."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator
from collections.abc import Sequence as Seq
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import structlog

from orchestrator.admission import Admission, Places
from orchestrator.agreement import Agreement
from orchestrator.board import DraftBoard
from orchestrator.decode import Cycle, Drafts, decode
from orchestrator.draft_lease import GrpcDraftLease
from orchestrator.draft_length import DraftLength
from orchestrator.drafting import Drafting
from orchestrator.estimates import Lane
from orchestrator.policy import SpeculationPlan
from orchestrator.pressure import Pressure, pressure
from orchestrator.receipt import BlockResult, Stats
from orchestrator.request import Request
from orchestrator.sequence import Event, Sequence, State
from orchestrator.shadow import OutputShadow, PassShadow, ShadowRecord
from orchestrator.transcript import Transcript
from orchestrator.verification import LeasedVerification
from orchestrator.worker import Worker
from orchestrator.workers import WorkerPool
from outrider import sources
from outrider.errors import OutriderError
from outrider.lookup.ngram import NgramIndex
from outrider.policy import ON, PressureLimits
from outrider.sampling import Mode
from outrider.text import StopMatcher

log = structlog.get_logger()


@dataclass(slots=True)
class Generation:
    """Runs one sequence; what it counted stays readable when it is over.

    ``timeout_s`` tells what is left of the client's deadline, None without one; ``observe`` is
    called once, when the sequence has ended.
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
    failure: OutriderError | None = None
    """What the client was told where the request failed."""
    shadow: ShadowRecord | None = None
    """What drafts would have done, where they are only judged."""
    logprobs: list[Any] = field(default_factory=list)
    """Of every output token, where the request asked, as the verifiers told them."""
    prompt_logprobs: Seq[Any] = ()
    rank_uniforms: list[float] = field(default_factory=list)
    """Of every output token, where the request is watched."""
    pinned_drafter: Worker | None = None
    """The only drafter to be used; None leaves the choice to the pool."""
    preferred_verifier: Worker | None = None
    """The one that has read the prompt; used first, if it can be."""
    verifier: Worker | None = None
    """The last one that was used."""
    _board: DraftBoard = field(default_factory=DraftBoard)
    _holds_drafter: bool = False
    _has_begun: bool = False
    _length: DraftLength = field(init=False)

    def __post_init__(self) -> None:
        self.began = self.clock()
        request = self.request
        self.sequence = Sequence(request.sequence_id, request.prompt_ids, request.max_length)

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

    async def run(
        self, admission: Admission, places: Places | None = None
    ) -> AsyncGenerator[Cycle, None]:
        """Yield each cycle as it is committed; leases are closed whatever happens.

        ``places`` are held for the request in the queue already.

        Raises: ResourceExhausted if the queue is full; Unavailable if the verifier is lost for
            good.
        """
        with self._observed():
            request, right_of_way = self.request, self.pool.right_of_way
            async with admission.slot(request.priority, places=places):
                self.was_admitted, self.stats.queue_ms = True, self.elapsed_ms
                verification = LeasedVerification(
                    request, self.pool, self.stats, self.timeout_s, self.preferred_verifier
                )
                drafting = self._drafts(admission)
                try:
                    steps = decode(
                        self.sequence, verification, drafting, self._transcript(), self.stats
                    )
                    with right_of_way.hold(request.target.key, request.priority):
                        async for cycle in steps:
                            self.verifier = verification.worker
                            self._keep_logprobs(cycle)
                            told = cycle.verdict.rank_uniforms
                            self.rank_uniforms += told[: len(cycle.delivery.tokens)]
                            self.stats.ttft_ms = self.stats.ttft_ms or self.elapsed_ms
                            yield cycle
                finally:
                    self._close(verification, drafting)

    def _keep_logprobs(self, cycle: Cycle) -> None:
        tokens = cycle.delivery.tokens
        self.logprobs += [each.logprobs for each in tokens if each.logprobs is not None]
        self.prompt_logprobs = self.prompt_logprobs or cycle.verdict.prompt_logprobs

    def abandon(self, error: BaseException) -> None:
        """The request ends before this sequence began; nothing happens if it did begin."""
        if self._has_begun:
            return
        self._has_begun = True
        self.was_cancelled = isinstance(error, asyncio.CancelledError | GeneratorExit)
        self.failure = error if isinstance(error, OutriderError) else None
        self.observe(self)

    @contextmanager
    def _observed(self) -> Iterator[None]:
        """Tell of the end, whatever it is."""
        self._has_begun = True
        try:
            yield
        except (asyncio.CancelledError, GeneratorExit):
            self.was_cancelled = True
            raise
        except OutriderError as error:
            self.failure = error
            raise
        finally:
            self.observe(self)

    def _close(self, verification: LeasedVerification, drafting: Drafts) -> None:
        """Close the leases and keep what they counted."""
        if self.sequence.state is not State.FINISHED:
            self.sequence.apply(Event.ABORT)
        verification.close()
        drafting.close()
        self._release_drafter()
        self.num_ledger_heals = verification.num_heals + drafting.num_heals
        drafted = self.stats if self.shadow is None else self.shadow.stats
        drafted.note_blocks(BlockResult.STALE, self._board.num_stale_blocks)
        if self.shadow is None:
            self.num_discarded_tokens = self._board.num_discarded_tokens
        self._log_finished()

    def _drafts(self, admission: Admission) -> Drafts:
        """Return what drafts for the request, or beside it where drafts are only judged."""
        request = self.request
        if not request.plan.is_shadowed:
            return self._drafting(admission, request.plan, self.stats)
        plan = replace(request.plan, decision=ON)
        if request.mode is Mode.RATIO:
            self.shadow = ShadowRecord("pass")
            plan = replace(plan, draft_wait_s=0.0)
            drafting = self._drafting(admission, plan, self.shadow.stats)
            return PassShadow(
                drafting, self.shadow, drafting.length.pressure, plan.shadow.max_slowdown
            )
        self.shadow = ShadowRecord("output")
        return OutputShadow(
            self._drafting(admission, plan, self.shadow.stats),
            self.shadow,
            replace(self.sequence),
            request.target.identity.vocab_size,
            self.pool.max_draft_tokens(request.target),
        )

    def _drafting(self, admission: Admission, plan: SpeculationPlan, stats: Stats) -> Drafting:
        request, estimates = self.request, self.pool.estimates
        target = request.target.key
        verify = estimates.verify(target)
        limits = plan.pressure or PressureLimits()

        def present_pressure() -> Pressure:
            return pressure(
                limits,
                queue_share=verify.queue_share.value,
                kv_usage=verify.pool_usage,
                waiting_per_slot=admission.num_waiting / admission.max_running,
                rows_in_pass=verify.own_rows.value + verify.other_rows.value,
            )

        def most_tokens() -> int | None:
            return self.pool.right_of_way.most_tokens(target, request.priority, verify)

        def length(lane: Lane) -> DraftLength:
            limit = max(self.pool.max_draft_tokens(request.target), 1)
            return DraftLength(
                plan, request.sequence_id, lane, limit, present_pressure, most_tokens
            )

        self._length = length(Lane(verify))
        lookup = length(estimates.lane(target, "", sources.LOOKUP))
        lookup.agreement = self._agreement(sources.LOOKUP)
        return Drafting(
            plan=plan,
            board=self._board,
            stats=stats,
            open_lease=self._open_draft_lease,
            clock=self.clock,
            length=self._length,
            lookup_length=lookup,
            index=NgramIndex() if plan.lookup else None,
            constrained=request.constrained and request.constrained.anew(),
        )

    def _transcript(self) -> Transcript:
        sampling, codec = self.request.sampling, self.request.target.codec
        assert sampling.max_tokens is not None
        return Transcript(
            stream=codec.stream(
                skip_special_tokens=sampling.skip_special_tokens,
                prompt_ids=self.request.prompt_ids,
            ),
            stops=StopMatcher(sampling.stop, keeps_match=sampling.include_stop_str_in_output),
            stop_token_ids=frozenset(sampling.stop_token_ids),
            max_output_tokens=sampling.max_tokens,
            keeps_stop=sampling.include_stop_str_in_output,
        )

    def _open_draft_lease(self) -> GrpcDraftLease | None:
        """Open a lease on the best drafter for this request, if there is one."""
        self._release_drafter()
        request = self.request
        worker = self.pinned_drafter or self.pool.choose_drafter(
            request.target, request.plan.sources, request.plan.drafters
        )
        if worker is None:
            return None
        self.drafter, self._holds_drafter = worker, True
        worker.num_leases += 1
        source = worker.source_of(request.plan.sources)
        lane = self.pool.estimates.lane(request.target.key, worker.address, source)
        limit = self.pool.max_draft_tokens(request.target, worker)
        self._length.bind(lane, limit, self._agreement(source))
        return GrpcDraftLease.open(
            worker, self.sequence, request, self._board, self.timeout_s(), lane.draft
        )

    def _agreement(self, source: str) -> Agreement | None:
        """Return what the request's class has seen of a source, where it minds."""
        plan, target = self.request.plan, self.request.target.key
        return self.pool.agreements.of(target, plan.class_name, source, plan.min_agreement)

    def _release_drafter(self) -> None:
        if self._holds_drafter and self.drafter is not None:
            self.drafter.num_leases -= 1
            self._holds_drafter = False

    def _log_finished(self) -> None:
        """Write the one canonical line of the sequence."""
        stats, end = self.stats, self.sequence.end
        log.info(
            "request_finished",
            index=self.request.index,
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
