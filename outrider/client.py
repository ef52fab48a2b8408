"""A Python client of the orchestrator, for programs and for the command line."""

from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType

from outrider.sampling import AcceptanceRule, SamplingParams
from outrider.serving.channel import open_channel
from outrider.serving.request_id import request_id_metadata
from outrider.v1 import generation_pb2 as pb
from outrider.v1 import generation_pb2_grpc

RULES = {
    AcceptanceRule.COUPLED: pb.ACCEPTANCE_RULE_COUPLED,
    AcceptanceRule.REJECTION: pb.ACCEPTANCE_RULE_REJECTION,
    AcceptanceRule.BLOCK: pb.ACCEPTANCE_RULE_BLOCK,
}
Prompt = str | Sequence[int] | Sequence[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Output:
    """A finished request: all chunks, and the completion with its receipt."""

    chunks: tuple[pb.GenerateChunk, ...]
    complete: pb.GenerateComplete

    @property
    def text(self) -> str:
        """The output text."""
        return "".join(chunk.text for chunk in self.chunks)

    @property
    def token_ids(self) -> list[int]:
        """The output ids."""
        return list(self.complete.output_ids)


class Client:
    """Calls one orchestrator; use it as an async context manager.

    Raises: grpc.aio.AioRpcError from every call, with the code that the service documents.
    """

    def __init__(self, address: str) -> None:
        self._channel = open_channel(address)
        self.stub = generation_pb2_grpc.GenerationServiceStub(self._channel)

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._channel.close()

    async def stream(
        self,
        request: pb.GenerateRequest,
        *,
        timeout_s: float | None = None,
        request_id: str = "",
        metadata: Mapping[str, str] | None = None,
    ) -> AsyncIterator[pb.GenerateResponse]:
        """Yield chunks as they come, then the completion."""
        sent = [*(metadata or {}).items(), *(request_id_metadata(request_id) if request_id else ())]
        call = self.stub.Generate(request, timeout=timeout_s, metadata=sent)
        try:
            async for response in call:
                yield response
        finally:
            call.cancel()

    async def generate(
        self, request: pb.GenerateRequest, *, timeout_s: float | None = None, request_id: str = ""
    ) -> Output:
        """Run a request to its end."""
        chunks: list[pb.GenerateChunk] = []
        complete: pb.GenerateComplete | None = None
        async for response in self.stream(request, timeout_s=timeout_s, request_id=request_id):
            if response.WhichOneof("kind") == "chunk":
                chunks.append(response.chunk)
            else:
                complete = response.complete
        if complete is None:
            raise RuntimeError("the stream ended with OK but without a completion")
        return Output(tuple(chunks), complete)

    async def tokenize(self, prompt: str | Sequence[tuple[str, str]], model: str = "") -> list[int]:
        """Return the ids of a text, or of (role, content) messages with the chat template."""
        request = pb.TokenizeRequest(model=model)
        if isinstance(prompt, str):
            request.text = prompt
        else:
            for role, content in prompt:
                request.chat.messages.add(role=role, content=content)
        return list((await self.stub.Tokenize(request)).token_ids)


def generate_request(
    prompt: Prompt,
    sampling: SamplingParams | None = None,
    *,
    model: str = "",
    target_only: bool = False,
    sources: Sequence[str] = (),
    num_draft_tokens: int | None = None,
    acceptance_rule: AcceptanceRule | None = None,
    trace_top_ids: int = 0,
    report_costs: bool = False,
    cache_salt: str = "",
    priority: int = 0,
) -> pb.GenerateRequest:
    """Build a request from text, from token ids, or from (role, content) messages."""
    request = pb.GenerateRequest(model=model, cache_salt=cache_salt, priority=priority)
    if sampling is not None:
        request.sampling_params.CopyFrom(sampling.to_proto())
    if acceptance_rule is not None:
        request.speculation.acceptance_rule = RULES[acceptance_rule]
    if trace_top_ids:
        request.speculation.trace_top_ids = trace_top_ids
    if report_costs:
        request.speculation.report_costs = True
    if target_only or sources or num_draft_tokens is not None:
        request.speculation.target_only = target_only
        request.speculation.sources.extend(sources)
        if num_draft_tokens is not None:
            request.speculation.num_draft_tokens = num_draft_tokens
    if isinstance(prompt, str):
        request.text = prompt
    elif prompt and isinstance(prompt[0], tuple):
        for role, content in prompt:  # type: ignore[misc]
            request.chat.messages.add(role=role, content=content)
    else:
        request.tokenized.input_ids.extend(prompt)
    return request
