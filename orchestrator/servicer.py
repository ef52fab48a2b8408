"""The orchestrator's gRPC face: messages to requests, deliveries to messages, nothing else."""

import time
from contextlib import aclosing
from dataclasses import dataclass, field

import grpc

import outrider
from orchestrator.admission import Admission
from orchestrator.chat import Chat
from orchestrator.choices import Choices
from orchestrator.decode import Cycle
from orchestrator.generation import Generation
from orchestrator.metrics import OrchestratorMetrics
from orchestrator.monitor import Monitor
from orchestrator.policy_in_force import PolicyInForce
from orchestrator.receipt_log import ReceiptLog
from orchestrator.receipt_message import receipt_of, refusal_of
from orchestrator.receipt_store import ReceiptStore
from orchestrator.request import (
    Prompt,
    Request,
    Text,
    TokenIds,
    admit,
    check_ids,
    constrain,
    prompt_ids_of,
)
from orchestrator.sequence import FinishReason
from orchestrator.verdict import Origin
from orchestrator.worker import Worker
from orchestrator.workers import Pair, WorkerPool
from outrider.errors import InvalidField, OutriderError
from outrider.identity import IdentityDigests
from outrider.policy import SpeculationOptions
from outrider.sampling import SamplingParams
from outrider.serving.request_id import current_request_id
from outrider.v1 import common_pb2, generation_pb2, generation_pb2_grpc

ORIGINS = {
    Origin.ACCEPTED: generation_pb2.TOKEN_ORIGIN_ACCEPTED,
    Origin.RECOVERED: generation_pb2.TOKEN_ORIGIN_RECOVERED,
    Origin.BONUS: generation_pb2.TOKEN_ORIGIN_BONUS,
    Origin.ONLY: generation_pb2.TOKEN_ORIGIN_ONLY,
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
    policies: PolicyInForce
    metrics: OrchestratorMetrics
    receipts: ReceiptStore
    monitor: Monitor
    receipt_log: ReceiptLog | None = None
    started_at_s: float = field(default_factory=time.time)

    async def Generate(
        self, request: generation_pb2.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> None:
        """Stream the chunks of a request's choices, and the completion of each."""
        receipts: dict[int, generation_pb2.Receipt] = {}

        def observe(ended: Generation) -> None:
            receipts[ended.request.index] = self._observe(ended)

        admitted = await self._admitted(request, context)
        choices = Choices(admitted, self.pool, context.time_remaining, observe)
        # Leases are freed when the client leaves, not at a garbage collection.
        async with aclosing(choices.run(self.admission)) as turns:
            async for generation, cycle in turns:
                index = generation.request.index
                if cycle is None:
                    complete = _complete(generation, receipts[index])
                    told = generation_pb2.GenerateResponse(complete=complete)
                else:
                    chunk = _chunk(cycle, index)
                    if request.speculation.report_costs:
                        chunk.cost.CopyFrom(_cost(cycle))
                    told = generation_pb2.GenerateResponse(chunk=chunk)
                await context.write(told)

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
            policy=_policy_info(self.policies),
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

    async def GetReceipt(
        self, request: generation_pb2.GetReceiptRequest, context: grpc.aio.ServicerContext
    ) -> generation_pb2.GetReceiptResponse:
        """Return the receipts of a request that has ended."""
        if not request.request_id:
            raise InvalidField("request_id", "must be given")
        receipts = self.receipts.get(request.request_id)
        return generation_pb2.GetReceiptResponse(receipts=receipts)

    async def Tokenize(
        self, request: generation_pb2.TokenizeRequest, context: grpc.aio.ServicerContext
    ) -> generation_pb2.TokenizeResponse:
        """Return the ids of a text or a conversation."""
        ids = prompt_ids_of(_prompt(request), self.pool.target(request.model))
        return generation_pb2.TokenizeResponse(token_ids=ids)

    async def Detokenize(
        self, request: generation_pb2.DetokenizeRequest, context: grpc.aio.ServicerContext
    ) -> generation_pb2.DetokenizeResponse:
        """Return the text of ids, and the bytes of each."""
        target = self.pool.target(request.model)
        check_ids("token_ids", request.token_ids, target.identity.vocab_size)
        skip = not request.HasField("skip_special_tokens") or request.skip_special_tokens
        text = target.codec.decode(tuple(request.token_ids), skip_special_tokens=skip)
        token_bytes = map(target.codec.token_bytes, request.token_ids)
        return generation_pb2.DetokenizeResponse(text=text, token_bytes=token_bytes)

    def _observe(self, generation: Generation) -> generation_pb2.Receipt:
        """Count a request that has ended, and keep its receipt."""
        self.metrics.observe(generation)
        self.monitor.consider(generation)
        receipt = receipt_of(generation)
        self._keep(receipt)
        return receipt

    def _keep(self, receipt: generation_pb2.Receipt) -> None:
        self.receipts.add(receipt.request_id, receipt)
        if self.receipt_log is not None:
            self.receipt_log.add(receipt)

    async def _admitted(
        self, message: generation_pb2.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> Request:
        """Admit a request; a refusal gets a receipt as well."""
        arrived_at_s = time.time()
        try:
            return self.monitor.watch(await constrain(self._admit(message, context)))
        except OutriderError as error:
            self._keep(refusal_of(message, current_request_id(), error, arrived_at_s))
            raise

    def _admit(
        self, message: generation_pb2.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> Request:
        if message.lora_id:
            raise InvalidField("lora_id", f"{message.lora_id!r}: adapters are not supported")
        options = SpeculationOptions.from_proto(message.speculation)
        self.pool.check_sources(options.sources)
        return admit(
            request_id=current_request_id(),
            target=self.pool.target(message.model),
            prompt=_prompt(message),
            sampling=SamplingParams.from_proto(message.sampling_params),
            speculation=options,
            expected=IdentityDigests.from_proto(message.expected),
            cache_salt=message.cache_salt,
            policy=self.policies.policy,
            priority=message.priority,
            metadata=dict(context.invocation_metadata() or ()),
            has_tools=bool(message.chat.tools_json),
        )


def _prompt(
    message: generation_pb2.GenerateRequest | generation_pb2.TokenizeRequest,
) -> Prompt | None:
    match message.WhichOneof("input"):
        case "text":
            return Text(message.text)
        case "chat":
            chat = message.chat
            return Chat.read(
                ((each.role, each.content, each.extra_json) for each in chat.messages),
                tools_json=chat.tools_json,
                template_kwargs_json=chat.template_kwargs_json,
                continue_final_message=chat.continue_final_message,
            )
        case "tokenized":
            assert isinstance(message, generation_pb2.GenerateRequest)
            return TokenIds(tuple(message.tokenized.input_ids))
    return None


def _chunk(cycle: Cycle, index: int) -> generation_pb2.GenerateChunk:
    delivery = cycle.delivery
    return generation_pb2.GenerateChunk(
        index=index,
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


def _cost(cycle: Cycle) -> generation_pb2.CycleCost:
    draft, verdict = cycle.draft, cycle.verdict
    return generation_pb2.CycleCost(
        cycle=cycle.number,
        num_draft_tokens=len(draft),
        num_accepted_draft_tokens=verdict.num_accepted,
        is_tree=bool(draft.parents),
        source=draft.source,
        draft_wait_ms=cycle.wait_ms,
        draft_compute_ms=draft.compute_ms,
        queue_ms=verdict.queue_ms,
        compute_ms=verdict.compute_ms,
        round_trip_ms=verdict.round_trip_ms,
        num_passes=verdict.num_passes,
        num_rows=verdict.num_rows,
        rows_in_pass=verdict.rows_in_pass,
    )


def _complete(
    generation: Generation, receipt: generation_pb2.Receipt
) -> generation_pb2.GenerateComplete:
    sequence, end = generation.sequence, generation.sequence.end
    assert end is not None
    output_ids = sequence.output_ids
    complete = generation_pb2.GenerateComplete(
        index=generation.request.index,
        output_ids=output_ids,
        finish_reason=REASONS[end.reason],
        prompt_tokens=len(sequence.prompt_ids),
        completion_tokens=len(output_ids),
        cached_tokens=generation.stats.cached_tokens,
        receipt=receipt,
        logprobs=generation.logprobs,
        prompt_logprobs=generation.prompt_logprobs,
    )
    if end.token_id is not None:
        complete.matched_token_id = end.token_id
    if end.stop is not None:
        complete.matched_stop_str = end.stop
    return complete


def _policy_info(policies: PolicyInForce) -> generation_pb2.PolicyInfo:
    return generation_pb2.PolicyInfo(
        version=policies.policy.version,
        digest=policies.policy.digest,
        path=str(policies.path or ""),
        loaded_at_s=policies.loaded_at_s,
        error=policies.error,
    )


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
