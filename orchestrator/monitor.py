"""Whether what is served is what the target alone would say, watched on a share of the traffic.

Two things are looked at. The tokens of a watched request that is sampled each have a number that is
uniform if they follow the target's law (``outrider.uniformity``); the verifier states it beside its
verdicts. And a watched request whose output depends on nothing but its seed is made once more
without drafts, in a prefix cache of its own, and compared token by token. A replay runs at the
lowest priority, one at a time, and stands still while clients wait.
"""

import asyncio
import enum
import random
import time
import uuid
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field, replace

import numpy as np
import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge

from orchestrator.admission import Admission
from orchestrator.decode import Cycle
from orchestrator.generation import Generation
from orchestrator.policy import ConstantLength, SpeculationPlan
from orchestrator.request import Request
from orchestrator.workers import WorkerPool
from outrider.errors import OutriderError
from outrider.policy import MAX_PRIORITY
from outrider.sampling import Mode
from outrider.ties import TIE
from outrider.uniformity import Evidence

MAX_QUEUED = 16
MAX_KV_USAGE = 0.8  # of the verifiers; above, a replay could cost clients their KV
POLL_S = 0.05
PATIENCE_S = 60.0  # for which a replay that has begun stands still
NAMESPACE = "outrider"

log = structlog.get_logger()


class Result(enum.Enum):
    """What a replay came to."""

    EQUAL = "equal"
    TIED = "tied"  # it parts where rounding may decide, as the verifier's numerics declare
    DIFFERENT = "different"
    DROPPED = "dropped"  # the queue was full
    ABANDONED = "abandoned"  # clients waited for too long
    FAILED = "failed"  # no verifier, or an error


class MonitorMetrics:
    """What the monitor found, by model."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, about: str, *labels: str) -> Counter:
            return Counter(name, about, labels, namespace=NAMESPACE, registry=registry)

        def gauge(name: str, about: str, *labels: str) -> Gauge:
            return Gauge(name, about, labels, namespace=NAMESPACE, registry=registry)

        self.replays = counter(
            "quality_replays", "Outputs that were made again without drafts.", "model", "result"
        )
        self.differences = counter(
            "quality_diff_sampled", "Replays that differ beyond declared numerics.", "model"
        )
        self.tokens = counter(
            "quality_tokens_tested", "Tokens tested against the target's law.", "model", "rule"
        )
        self.evidence = gauge(
            "quality_evidence", "Evidence against the target's law, log 10.", "model", "rule"
        )
        self.alarm = gauge("quality_alarm", "1 once something is wrong with outputs.", "model")


@dataclass(frozen=True, slots=True)
class Replay:
    """A request to be made again, and the output that it had."""

    request: Request
    output_ids: tuple[int, ...]

    @classmethod
    def of(cls, ended: Generation) -> "Replay":
        """Return the request without drafts, with nothing of its own left in any cache."""
        request = ended.request
        plan = SpeculationPlan((), ConstantLength(0), 0.0, False, "replay", request.plan.rule)
        again = replace(
            request,
            request_id=f"{request.request_id}-replay",
            sampling=replace(request.sampling, logprobs=None, prompt_logprobs=None),
            plan=plan,
            cache_salt=f"replay-{uuid.uuid4().hex}",
            priority=-MAX_PRIORITY,
            decision=None,
            is_watched=False,
        )
        return cls(again, tuple(ended.sequence.output_ids))

    @property
    def tie(self) -> float:
        """The lead that rounding may overturn: none where rows are invariant."""
        if self.request.target.identity.numerics.row_invariant:
            return 0.0
        return TIE / (
            1.0 if self.request.mode is Mode.GREEDY else self.request.sampling.temperature
        )


@dataclass(slots=True)
class Monitor:
    """Watches a share of the requests; off where that is 0."""

    pool: WorkerPool
    admission: Admission
    metrics: MonitorMetrics
    share: float
    alarm_evidence: float
    chance: Callable[[], float] = random.random
    clock: Callable[[], float] = time.monotonic
    _queue: "asyncio.Queue[Replay]" = field(default_factory=lambda: asyncio.Queue(MAX_QUEUED))
    _evidence: dict[tuple[str, str], Evidence] = field(default_factory=dict)
    _raised: set[tuple[str, str]] = field(default_factory=set)

    def watch(self, request: Request) -> Request:
        """Return the request, marked where it is one of the share."""
        if request.plan.speculates and self.share and self.chance() < self.share:
            self.metrics.alarm.labels(request.target.identity.name)
            return replace(request, is_watched=True)
        return request

    def consider(self, ended: Generation) -> None:
        """Take in a request that has ended, in whatever way."""
        if not ended.request.is_watched:
            return
        self._test(ended)
        finished = ended.sequence.end is not None and ended.stats.num_draft_tokens > 0
        if finished and ended.request.mode is not Mode.RATIO:
            try:
                self._queue.put_nowait(Replay.of(ended))
            except asyncio.QueueFull:
                self._count(ended.request, Result.DROPPED)

    async def run(self) -> None:
        """Make outputs again, one after the other, for ever."""
        while True:
            replay = await self._queue.get()
            try:
                result = await self._run(replay)
            except OutriderError as error:
                log.warning("replay_failed", request_id=replay.request.request_id, error=str(error))
                result = Result.FAILED
            except Exception:  # of a fault of ours the monitor must not end unseen
                log.exception("replay_failed", request_id=replay.request.request_id)
                result = Result.FAILED
            self._count(replay.request, result)

    def _test(self, ended: Generation) -> None:
        """Add the tokens of a request to the evidence of its rule."""
        if not ended.rank_uniforms:
            return
        model, rule = ended.request.target.identity.name, ended.request.plan.rule.value
        evidence = self._evidence.setdefault((model, rule), Evidence())
        evidence.add(np.array(ended.rank_uniforms))
        found = evidence.log10
        self.metrics.tokens.labels(model, rule).inc(len(ended.rank_uniforms))
        self.metrics.evidence.labels(model, rule).set(found)
        if found >= self.alarm_evidence:
            self._raise_alarm(model, f"{rule}: tokens do not follow the target's law")

    async def _run(self, replay: Replay) -> Result:
        """Make an output again until it differs or ends."""
        if not await self._until_quiet(replay.request):
            return Result.ABANDONED
        # A slot of its own: clients get all of theirs.
        own_slot = Admission(max_running=1, max_waiting=0)
        generation = Generation(replay.request, self.pool, lambda: None, _not_counted)
        async with aclosing(generation.run(own_slot)) as cycles:
            async for cycle in cycles:
                found = self._compare(replay, cycle)
                if found is not None:
                    return found
                if not await self._until_quiet(replay.request):
                    return Result.ABANDONED
        if tuple(generation.sequence.output_ids) == replay.output_ids:
            return Result.EQUAL
        return self._different(replay, len(generation.sequence.output_ids), 0.0)

    def _compare(self, replay: Replay, cycle: Cycle) -> Result | None:
        """Return what a cycle of a replay shows; None if it goes on like the output."""
        at = cycle.base_position - len(replay.request.prompt_ids)
        ids = tuple(token.token_id for token in cycle.delivery.tokens)
        if ids == replay.output_ids[at : at + len(ids)]:
            return None
        if cycle.verdict.margin < replay.tie:
            return Result.TIED
        return self._different(replay, at, cycle.verdict.margin)

    def _different(self, replay: Replay, at: int, margin: float) -> Result:
        model = replay.request.target.identity.name
        self.metrics.differences.labels(model).inc()
        name = replay.request.request_id
        log.error("replay_differs", model=model, replay=name, at=at, margin=margin)
        self._raise_alarm(model, "a replay without drafts gave another token")
        return Result.DIFFERENT

    def _raise_alarm(self, model: str, reason: str) -> None:
        """Raise the alarm of a model, and say so once for every reason."""
        if (model, reason) not in self._raised:
            self._raised.add((model, reason))
            log.error("quality_alarm", model=model, reason=reason)
            self.metrics.alarm.labels(model).set(1)

    async def _until_quiet(self, request: Request) -> bool:
        """Wait until no client waits for a slot or for KV; False if that takes too long."""
        verify = self.pool.estimates.verify(request.target.key)
        until = self.clock() + PATIENCE_S
        while (running := self.admission.num_running) and (
            self.admission.num_waiting
            or running >= self.admission.max_running
            or verify.pool_usage > MAX_KV_USAGE
        ):
            if self.clock() > until:
                return False
            await asyncio.sleep(POLL_S)
        return True

    def _count(self, request: Request, result: Result) -> None:
        self.metrics.replays.labels(request.target.identity.name, result.value).inc()


def _not_counted(generation: Generation) -> None:
    """A replay is no client's request."""
