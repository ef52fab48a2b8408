"""The orchestrator's gRPC face: messages to requests, deliveries to messages, nothing else."""

import asyncio
import time
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, field

import grpc

import outrider
from orchestrator.admission import Admission
from orchestrator.decode import Cycle
from orchestrator.generation import Generation
from orchestrator.metrics import OrchestratorMetrics
from orchestrator.policy import Policy, SpeculationOptions
from orchestrator.receipt import dense
from orchestrator.request import (
    Chat,
    Prompt,
    Request,
    Text,
    TokenIds,
    admit,
    check_ids,
    prompt_ids_of,
)
from orchestrator.sequence import FinishReason
from orchestrator.verdict import Origin
from orchestrator.worker import Worker
from orchestrator.workers import Pair, WorkerPool
from outrider.errors import InvalidField
from outrider.identity import IdentityDigests
from outrider.sampling import AcceptanceRule, Mode, SamplingParams
from outrider.serving.request_id import current_request_id
from outrider.v1 import common_pb2, generation_pb2, generation_pb2_grpc

ORIGINS = {
    Origin.ACCEPTED: generation_pb2.TOKEN_ORIGIN_ACCEPTED,
    Origin.RECOVERED: generation_pb2.TOKEN_ORIGIN_RECOVERED,
    Origin.BONUS: generation_pb2.TOKEN_ORIGIN_BONUS,
    Origin.ONLY: generation_pb2.TOKEN_ORIGIN_ONLY,
}
RULES = {
    generation_pb2.ACCEPTANCE_RULE_COUPLED: AcceptanceRule.COUPLED,
    generation_pb2.ACCEPTANCE_RULE_REJECTION: AcceptanceRule.REJECTION,
    generation_pb2.ACCEPTANCE_RULE_BLOCK: AcceptanceRule.BLOCK,
}
REASONS = {
    FinishReason.STOP: generation_pb2.FINISH_REASON_STOP,
    FinishReason.LENGTH: generation_pb2.FINISH_REASON_LENGTH,
}


@dataclass(slots=True)
class GenerationServicer(generation_pb2_grpc.GenerationServiceServicer):
    """Serves clients."""

    pool: WorkerPool
    admission: Admission
    policy: Policy
    metrics: OrchestratorMetrics
    started_at_s: float = field(default_factory=time.time)

    async def Generate(
        self, request: generation_pb2.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> None:
        """Stream the chunks of one request, then its completion."""
        generation = Generation(
            self._admit(request), self.pool, context.time_remaining, self.metrics.observe
        )
        # A chunk is written while the next cycle is under way; a client that reads slowly holds its
        # own request back by one chunk. Leases are freed when the client leaves, not at a garbage
        # collection.
        writing: asyncio.Task[None] | None = None
        try:
            async with aclosing(generation.run(self.admission)) as cycles:
                async for cycle in cycles:
                    if writing is not None:
                        await writing
                    response = generation_pb2.GenerateResponse(chunk=_chunk(cycle))
                    writing = asyncio.create_task(context.write(response))
            if writing is not None:
                await writing
        finally:
            if writing is not None:
                writing.cancel()
        await context.write(generation_pb2.GenerateResponse(complete=_complete(generation)))

    async def GetModelInfo(
        self, request: generation_pb2.GetModelInfoRequest, context: grpc.aio.ServicerContext
    ) -> generation_pb2.GetModelInfoResponse:
        """Return the target's identity."""
        identity = self.pool.target(request.model).identity
        longest = identity.max_context_length - 1
        return generation_pb2.GetModelInfoResponse(
            identity=identity.to_proto(), max_req_input_len=longest
        )

    async def GetServerInfo(
        self, request: generation_pb2.GetServerInfoRequest, context: grpc.aio.ServicerContext
    ) -> generation_pb2.GetServerInfoResponse:
        """Return workers, pairs and refusals."""
        state, reason = self.pool.shortage()
        return generation_pb2.GetServerInfoResponse(
            state=state.value,
            reason=reason,
            pairs=[_pair_info(pair) for pair in self.pool.pairs()],
            version=outrider.__version__,
            workers=[_worker_info(worker) for worker in self.pool.workers],
            started_at_s=self.started_at_s,
        )

    async def GetLoads(
        self,
        request: generation_pb2.GenerationServiceGetLoadsRequest,
        context: grpc.aio.ServicerContext,
    ) -> generation_pb2.GenerationServiceGetLoadsResponse:
        """Return the requests that run and wait."""
        load = common_pb2.Load(
            num_running_reqs=self.admission.num_running,
            num_waiting_reqs=self.admission.num_waiting,
        )
        return generation_pb2.GenerationServiceGetLoadsResponse(load=load)

    async def Tokenize(
        self, request: generation_pb2.TokenizeRequest, context: grpc.aio.ServicerContext
    ) -> generation_pb2.TokenizeResponse:
        """Return the ids of a text or a conversation."""
        ids = prompt_ids_of(_prompt(request), self.pool.target(request.model))
        return generation_pb2.TokenizeResponse(token_ids=ids)

    async def Detokenize(
        self, request: generation_pb2.DetokenizeRequest, context: grpc.aio.ServicerContext
    ) -> generation_pb2.DetokenizeResponse:
        """Return the text of ids."""
        target = self.pool.target(request.model)
        check_ids("token_ids", request.token_ids, target.identity.vocab_size)
        skip = not request.HasField("skip_special_tokens") or request.skip_special_tokens
        text = target.codec.decode(tuple(request.token_ids), skip_special_tokens=skip)
        return generation_pb2.DetokenizeResponse(text=text)

    def _admit(self, message: generation_pb2.GenerateRequest) -> Request:
        if message.lora_id:
            raise InvalidField("lora_id", f"{message.lora_id!r}: adapters are not supported")
        options = message.speculation
        self.pool.check_sources(tuple(options.sources))
        wanted = options.num_draft_tokens if options.HasField("num_draft_tokens") else None
        return admit(
            request_id=current_request_id(),
            target=self.pool.target(message.model),
            prompt=_prompt(message),
            sampling=SamplingParams.from_proto(message.sampling_params),
            speculation=SpeculationOptions(
                target_only=options.target_only,
                sources=tuple(options.sources),
                num_draft_tokens=wanted,
                rule=_rule(options.acceptance_rule),
                num_traced_ids=options.trace_top_ids,
            ),
            expected=IdentityDigests.from_proto(message.expected),
            cache_salt=message.cache_salt,
            policy=self.policy,
            priority=message.priority,
        )


def _prompt(
    message: generation_pb2.GenerateRequest | generation_pb2.TokenizeRequest,
) -> Prompt | None:
    match message.WhichOneof("input"):
        case "text":
            return Text(message.text)
        case "chat":
            messages = ({"role": m.role, "content": m.content} for m in message.chat.messages)
            return Chat(tuple(messages))
        case "tokenized":
            assert isinstance(message, generation_pb2.GenerateRequest)
            return TokenIds(tuple(message.tokenized.input_ids))
    return None


def _rule(value: int) -> AcceptanceRule | None:
    """Return the rule that was asked for; None leaves it to the policy."""
    if not value:
        return None
    for number, rule in RULES.items():
        if number == value:
            return rule
    raise InvalidField("speculation.acceptance_rule", f"{value} is not a rule")


def _chunk(cycle: Cycle) -> generation_pb2.GenerateChunk:
    delivery = cycle.delivery
    return generation_pb2.GenerateChunk(
        text=delivery.text,
        token_ids=[token.token_id for token in delivery.tokens],
        origins=[ORIGINS[token.origin] for token in delivery.tokens],
        pieces=delivery.pieces,
        trace=None if cycle.verdict.trace is None else _trace(cycle),
        logprobs=[token.logprobs for token in delivery.tokens if token.logprobs is not None],
    )


def _trace(cycle: Cycle) -> generation_pb2.CycleTrace:
    return generation_pb2.CycleTrace(
        cycle=cycle.number,
        base_position=cycle.base_position,
        draft=cycle.draft.to_proto(),
        step=cycle.verdict.trace,
        invalid_draft=cycle.verdict.invalid_draft,
    )


def _complete(generation: Generation) -> generation_pb2.GenerateComplete:
    sequence, end = generation.sequence, generation.sequence.end
    assert end is not None
    output_ids = sequence.output_ids
    complete = generation_pb2.GenerateComplete(
        output_ids=output_ids,
        finish_reason=REASONS[end.reason],
        prompt_tokens=len(sequence.prompt_ids),
        completion_tokens=len(output_ids),
        cached_tokens=generation.stats.cached_tokens,
        receipt=_receipt(generation),
        logprobs=generation.logprobs,
        prompt_logprobs=generation.prompt_logprobs,
    )
    if end.token_id is not None:
        complete.matched_token_id = end.token_id
    if end.stop is not None:
        complete.matched_stop_str = end.stop
    return complete


def _receipt(generation: Generation) -> generation_pb2.Receipt:
    stats, request = generation.stats, generation.request
    decision = request.plan.decision
    receipt = generation_pb2.Receipt(
        request_id=request.request_id,
        rule="greedy" if request.mode is Mode.GREEDY else request.plan.rule.value,
        seed=0 if request.mode is Mode.GREEDY else request.sampling.seed,
        target=request.target.identity.to_proto(),
        num_spec_steps=stats.num_spec_steps,
        num_draft_tokens=stats.num_draft_tokens,
        num_accepted_draft_tokens=stats.num_accepted_draft_tokens,
        num_discarded_draft_tokens=(
            stats.num_draft_tokens
            - stats.num_accepted_draft_tokens
            + generation.num_discarded_tokens
        ),
        draft_acceptance_rate=stats.draft_acceptance_rate,
        mean_acceptance_length=stats.mean_acceptance_length,
        acceptance_histogram=stats.histogram(),
        num_target_passes=stats.num_target_passes,
        num_passes_saved=stats.num_passes_saved,
        fallbacks=_reason_counts(stats.fallbacks),
        queue_ms=stats.queue_ms,
        draft_ms=stats.draft_ms,
        verify_ms=stats.verify_ms,
        network_ms=stats.network_ms,
        ttft_ms=stats.ttft_ms,
        total_ms=generation.elapsed_ms,
        draft_tokens_by_source=stats.draft_tokens_by_source,
        decision=decision,
        min_decision_margin=stats.min_margin,
        num_ledger_heals=generation.num_ledger_heals,
        num_failovers=stats.num_failovers,
        num_feature_bytes=stats.num_feature_bytes,
        draft_blocks=_reason_counts({each.value: n for each, n in stats.blocks.items() if n}),
    )
    if stats.draft_lengths:
        receipt.draft_lengths.histogram.extend(dense(stats.draft_lengths))
        receipt.draft_lengths.reasons.extend(_reason_counts(stats.length_reasons))
        receipt.draft_lengths.predicted_gain = stats.predicted_gain
    drafter = generation.drafter
    if drafter is not None and drafter.identity is not None:
        receipt.drafter.CopyFrom(drafter.identity.to_proto())
        if request.target.identity.name in drafter.overridden_targets:
            receipt.decision = f"{decision}; a chat template difference was overridden"
    return receipt


def _reason_counts(counts: Mapping[str, int]) -> list[generation_pb2.ReasonCount]:
    return [
        generation_pb2.ReasonCount(reason=reason, count=count)
        for reason, count in sorted(counts.items())
    ]


def _pair_info(pair: Pair) -> generation_pb2.PairInfo:
    return generation_pb2.PairInfo(
        model=pair.model,
        drafter=pair.drafter.address,
        reason=pair.reason,
        template_overridden=pair.model in pair.drafter.overridden_targets,
    )


def _worker_info(worker: Worker) -> generation_pb2.WorkerInfo:
    return generation_pb2.WorkerInfo(
        address=worker.address,
        role=worker.role.value,
        state=worker.state.value,
        reason=worker.reason,
        identity=None if worker.identity is None else worker.identity.to_proto(),
        sources=worker.sources,
    )
