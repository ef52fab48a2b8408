"""A verify lease.

One open stream to one verifier for one sequence, kept in step by the KV ledger.
"""

import asyncio
import enum
import time
from dataclasses import dataclass, field, replace

import grpc

from orchestrator.deadline import Deadline
from orchestrator.feedback import NO_FEEDBACK, FeedbackWanted
from orchestrator.kept_features import KeptFeatures, StepFeatures
from orchestrator.kv_ledger import KVLedger
from orchestrator.request import Request
from orchestrator.sequence import Sequence
from orchestrator.step_time import StepTime
from orchestrator.verdict import Origin, Verdict
from orchestrator.worker import Worker
from outrider.draft import Draft
from outrider.features import objection_to_layers
from outrider.sampling import AcceptanceRule
from outrider.serving.request_id import request_id_metadata
from outrider.v1 import verifier_pb2, verifier_pb2_grpc

# A step that still lacks context after so many is given up; preemption can cause a few.
MAX_RESENDS = 4

ORIGINS = {
    verifier_pb2.NEXT_TOKEN_KIND_RECOVERED: Origin.RECOVERED,
    verifier_pb2.NEXT_TOKEN_KIND_BONUS: Origin.BONUS,
    verifier_pb2.NEXT_TOKEN_KIND_ONLY: Origin.ONLY,
}
RATIO_RULES = {
    AcceptanceRule.COUPLED: verifier_pb2.RATIO_RULE_UNSPECIFIED,
    AcceptanceRule.REJECTION: verifier_pb2.RATIO_RULE_REJECTION,
    AcceptanceRule.BLOCK: verifier_pb2.RATIO_RULE_BLOCK,
}


class Loss(enum.Enum):
    """What a lost lease means for the sequence."""

    GONE = "gone"  # another verifier may serve it
    SILENT = "silent"  # the same, and this one may hang for others too
    FULL = "full"  # so may another, or this one later
    REFUSED = "refused"  # every equal verifier would refuse the same


LOSSES = {
    grpc.StatusCode.RESOURCE_EXHAUSTED: Loss.FULL,
    grpc.StatusCode.INVALID_ARGUMENT: Loss.REFUSED,
}


class VerifierLost(Exception):
    """The stream ended or gave no sensible answer."""

    def __init__(self, reason: str, loss: Loss = Loss.GONE) -> None:
        super().__init__(reason)
        self.reason = reason
        self.loss = loss


@dataclass(slots=True)
class VerifyLease:
    """Sends steps and receives verdicts; owns the ledger of one verifier's KV for one sequence.

    Every method raises VerifierLost when the stream cannot be used any more.
    """

    call: grpc.aio.StreamStreamCall
    opening: verifier_pb2.VerifyOpen
    step_time: StepTime
    incarnation: str
    """Of the verifier whose identity was judged."""
    num_traced_ids: int = 0
    score_only: bool = False
    """Drafts are judged and never used."""
    max_feature_layer: int | None = None
    """The largest layer that the verifier gives hidden states of; None: it gives none."""
    is_watched: bool = False
    ledger: KVLedger = field(default_factory=KVLedger)
    opening_sent: bool = False
    sent_at: float = 0.0
    num_sent: int = 0
    num_waiting: int = 0
    """Ids of the step, while it has no verdict."""
    num_waiting_at_all: int = 0
    """Of all leases of the verifier when the step was sent."""
    waits_since: float = 0.0
    patience_s: float = 0.0
    wanted: FeedbackWanted = NO_FEEDBACK
    """What was asked for with it."""
    features: KeptFeatures = field(default_factory=KeptFeatures)
    """Of the step that was sent, as far as they have come."""
    deadline: Deadline = field(default_factory=Deadline)

    @classmethod
    def open(
        cls,
        worker: Worker,
        sequence: Sequence,
        request: Request,
        timeout_s: float | None,
    ) -> "VerifyLease":
        """Start the stream; ``timeout_s`` is what the client's deadline leaves."""
        sampling = request.sampling
        if sequence.cycle:  # those of the prompt have been told
            sampling = replace(sampling, prompt_logprobs=None)
        opening = verifier_pb2.VerifyOpen(
            sequence_id=sequence.sequence_id,
            sampling=sampling.to_proto(),
            mode=request.mode.value,
            ratio_rule=RATIO_RULES[request.plan.rule],
            seed=request.sampling.key,
            cache_salt=request.cache_salt,
            priority=request.priority,
            expected=request.target.identity.digests.to_proto(),
            num_prompt_tokens=len(request.prompt_ids),
        )
        stub = verifier_pb2_grpc.VerifierServiceStub(worker.channel)
        call = stub.Verify(timeout=timeout_s, metadata=request_id_metadata(request.request_id))
        assert worker.identity is not None
        return cls(
            call,
            opening,
            worker.step_time,
            worker.identity.incarnation,
            request.plan.num_traced_ids,
            request.plan.is_shadowed,
            worker.max_feature_layer,
            request.is_watched,
        )

    async def send(
        self, sequence: Sequence, draft: Draft, wanted: FeedbackWanted = NO_FEEDBACK
    ) -> None:
        """Send the step of the present cycle with the ids that the verifier lacks.

        Hidden states that the verifier would refuse to give are not asked for: a drafter's wish
        must not fail a request.
        """
        start = min(self.ledger.cache_length, len(sequence) - 1)
        step = verifier_pb2.Step(
            cycle=sequence.cycle,
            start=start,
            token_ids=sequence.token_ids[start:],
            prefix_digest=sequence.digest.digest(start),
            top_ids=self.num_traced_ids,
            num_continuations=wanted.num_continuations,
            rank_uniforms=self.is_watched,
        )
        layers = wanted.feature_layers
        if layers and objection_to_layers(layers, self.max_feature_layer):
            wanted = replace(wanted, feature_layers=())
        elif layers:
            step.features.layers.extend(layers)
        self.wanted = wanted
        self.features.take()
        if draft:
            step.draft.CopyFrom(draft.to_proto())
            step.score_only = self.score_only
        self.sent_at = time.monotonic()
        self.num_sent = len(step.token_ids) + len(draft)
        self._count(self.num_sent)
        self.num_waiting_at_all = self.step_time.num_waiting
        try:
            # A peer that does not read blocks the write as soon as its window is full.
            with self._in_time():
                if not self.opening_sent:
                    self.opening_sent = True
                    await self.call.write(verifier_pb2.VerifyRequest(open=self.opening))
                await self.call.write(verifier_pb2.VerifyRequest(step=step))
        except TimeoutError:
            raise VerifierLost(
                f"the step was not taken within {self.patience_s:.1f} s", Loss.SILENT
            ) from None
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError) as error:
            raise await self._lost(error) from None

    async def verdict(self, sequence: Sequence, draft: Draft) -> Verdict:
        """Return the verdict of the step that was sent, giving the verifier the context it asks
        for."""
        for _ in range(MAX_RESENDS):
            response = await self._read(sequence)
            if response.WhichOneof("kind") == "verdict":
                return self._accept(sequence, draft, response.verdict)
            self.ledger.lower(response.context_needed.have_length)
            await self.send(sequence, draft, self.wanted)
        raise VerifierLost("verifier asked for context again and again")

    def close(self) -> None:
        """End the stream; the verifier frees the KV."""
        self._count(0)
        self.call.cancel()
        self.deadline.close()

    async def _read(self, sequence: Sequence) -> verifier_pb2.VerifyResponse:
        """Return the next answer to the present cycle.

        Older ones and the opening are passed over, features are kept.
        """
        try:
            with self._in_time():
                while True:
                    response: verifier_pb2.VerifyResponse = await self.call.read()
                    if response is grpc.aio.EOF:
                        raise await self._lost(None)
                    if response is None:  # what grpc makes of bytes that are no message
                        raise VerifierLost("verifier sent bytes that are no message")
                    kind = response.WhichOneof("kind")
                    if kind == "opened":
                        self._check_incarnation(response.opened.incarnation)
                        continue
                    if kind == "features":
                        if self.wanted.feature_layers:
                            self.features.add(response.features)
                        # The pass is over, and a slow line is no silence.
                        self._in_time()
                        continue
                    if kind is not None and getattr(response, kind).cycle == sequence.cycle:
                        return response
                    self.features.take()  # they belong to an older answer
        except TimeoutError:
            raise VerifierLost(f"no verdict within {self.patience_s:.1f} s", Loss.SILENT) from None
        except grpc.aio.AioRpcError as error:
            raise await self._lost(error) from None

    def _count(self, num_tokens: int) -> None:
        """Tell all leases of the verifier how many ids wait in this one."""
        self.step_time.num_waiting += num_tokens - self.num_waiting
        self.num_waiting = num_tokens

    def _in_time(self) -> Deadline:
        """Begin a wait for the verifier."""
        self.waits_since, self.patience_s = time.monotonic(), 0.0
        return self.deadline.within(self._left_s(), self._left_s)

    def _left_s(self) -> float:
        """Return how long the wait may go on; what others sent meanwhile lengthens it."""
        now_s = self.step_time.timeout_s(self.step_time.num_waiting)
        self.patience_s = max(self.patience_s, now_s)
        return self.waits_since + self.patience_s - time.monotonic()

    def _check_incarnation(self, incarnation: str) -> None:
        if incarnation != self.incarnation:
            raise VerifierLost("the verifier was restarted and is not known yet")

    def _accept(self, sequence: Sequence, draft: Draft, verdict: verifier_pb2.Verdict) -> Verdict:
        elapsed_s = time.monotonic() - self.sent_at
        self._count(0)
        num_waited = self.num_waiting_at_all - verdict.cached_tokens
        self.step_time.observe(num_waited, elapsed_s)
        nodes = tuple(verdict.accepted_nodes)
        scored = tuple(verdict.scored_nodes) if draft and self.score_only else None
        origin = ORIGINS.get(verdict.next_token_kind)
        fits = draft.has_path(nodes) if scored is None else draft.has_path(scored) and not nodes
        if not fits or origin is None:
            raise VerifierLost("verifier sent a verdict that does not fit the draft")
        if self.opening.sampling.HasField("logprobs") and len(verdict.logprobs) != len(nodes) + 1:
            raise VerifierLost("verifier sent a verdict without its log probabilities")
        self.ledger.expect(len(sequence) + len(nodes))
        self.ledger.observe(verdict.cache_length)
        load = verdict.load
        return Verdict(
            accepted_nodes=nodes,
            next_token_id=verdict.next_token_id,
            next_origin=origin,
            invalid_draft=verdict.invalid_draft,
            cached_tokens=verdict.cached_tokens,
            num_passes=verdict.num_passes,
            queue_ms=verdict.queue_ms,
            compute_ms=verdict.compute_ms,
            round_trip_ms=elapsed_s * 1e3,
            margin=verdict.min_decision_margin,
            num_rows=max(self.num_sent - verdict.cached_tokens, 0),
            rows_in_pass=verdict.rows_in_pass,
            num_leases=load.num_running_reqs,
            num_waiting=load.num_waiting_reqs,
            pool_usage=load.token_usage,
            trace=verdict.trace if verdict.HasField("trace") else None,
            no_room_for_draft=verdict.no_room_for_draft,
            continuations=verdict.continuations if verdict.HasField("continuations") else None,
            features=StepFeatures(self.wanted.feature_layers, self.features.take()),
            logprobs=tuple(verdict.logprobs),
            prompt_logprobs=tuple(verdict.prompt_logprobs),
            scored_nodes=scored,
            rank_uniforms=tuple(verdict.rank_uniforms),
        )

    async def _lost(self, error: BaseException | None) -> VerifierLost:
        """Return why the stream ended."""
        if isinstance(error, grpc.aio.AioRpcError):
            code, details = error.code(), error.details()
        else:
            code, details = await self.call.code(), await self.call.details()
        return VerifierLost(details or code.name, LOSSES.get(code, Loss.GONE))
