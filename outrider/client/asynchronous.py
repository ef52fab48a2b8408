"""The client for programs that run an event loop."""

from collections.abc import AsyncGenerator, Mapping, Sequence
from types import TracebackType

from outrider.client.output import Output, collect
from outrider.client.request import (
    Message,
    call_metadata,
    detokenize_request,
    tokenize_request,
)
from outrider.serving.channel import open_channel
from outrider.v1 import generation_pb2 as pb
from outrider.v1 import generation_pb2_grpc


class Client:
    """Calls one orchestrator; use it as an async context manager.

    ``stub`` has the calls that have no method here, ``channel`` carries other services.

    Raises: grpc.aio.AioRpcError from every call, with the code that the service documents.
    """

    def __init__(self, address: str) -> None:
        self.channel = open_channel(address)
        self.stub = generation_pb2_grpc.GenerationServiceStub(self.channel)

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self.channel.close()

    async def stream(
        self,
        request: pb.GenerateRequest,
        *,
        timeout_s: float | None = None,
        request_id: str = "",
        metadata: Mapping[str, str] | None = None,
    ) -> AsyncGenerator[pb.GenerateResponse, None]:
        """Yield chunks as they come, and the completion of each choice when it ends.

        Closing the generator cancels the request. ``metadata`` is what a policy may look at.
        """
        sent = call_metadata(request_id, metadata or {})
        call = self.stub.Generate(request, timeout=timeout_s, metadata=sent)
        try:
            async for response in call:
                yield response
        finally:
            call.cancel()

    async def generate(
        self,
        request: pb.GenerateRequest,
        *,
        timeout_s: float | None = None,
        request_id: str = "",
        metadata: Mapping[str, str] | None = None,
    ) -> Output:
        """Run a request to its end."""
        responses = self.stream(
            request, timeout_s=timeout_s, request_id=request_id, metadata=metadata
        )
        return collect([response async for response in responses])

    async def tokenize(self, prompt: str | Sequence[Message], model: str = "") -> list[int]:
        """Return the ids of a text, or of messages with the chat template."""
        return list((await self.stub.Tokenize(tokenize_request(prompt, model))).token_ids)

    async def detokenize(
        self, token_ids: Sequence[int], model: str = "", *, skip_special_tokens: bool = True
    ) -> str:
        """Return the text of ids by themselves."""
        request = detokenize_request(token_ids, model, skip_special_tokens)
        return str((await self.stub.Detokenize(request)).text)
