"""The client for programs that run no event loop."""

from collections.abc import Generator, Mapping, Sequence
from types import TracebackType

from outrider.client.output import Output, collect
from outrider.client.request import (
    Message,
    call_metadata,
    detokenize_request,
    tokenize_request,
)
from outrider.serving.channel import open_blocking_channel
from outrider.v1 import generation_pb2 as pb
from outrider.v1 import generation_pb2_grpc


class SyncClient:
    """Calls one orchestrator; use it as a context manager. Threads may share one.

    ``stub`` has the calls that have no method here, ``channel`` carries other services.

    Raises: grpc.RpcError from every call, with the code that the service documents.
    """

    def __init__(self, address: str) -> None:
        self.channel = open_blocking_channel(address)
        self.stub = generation_pb2_grpc.GenerationServiceStub(self.channel)

    def __enter__(self) -> "SyncClient":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.channel.close()

    def stream(
        self,
        request: pb.GenerateRequest,
        *,
        timeout_s: float | None = None,
        request_id: str = "",
        metadata: Mapping[str, str] | None = None,
    ) -> Generator[pb.GenerateResponse, None, None]:
        """Yield chunks as they come, and the completion of each choice when it ends.

        Closing the generator cancels the request. ``metadata`` is what a policy may look at.
        """
        sent = call_metadata(request_id, metadata or {})
        call = self.stub.Generate(request, timeout=timeout_s, metadata=sent)
        try:
            yield from call
        finally:
            call.cancel()

    def generate(
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
        return collect(responses)

    def tokenize(self, prompt: str | Sequence[Message], model: str = "") -> list[int]:
        """Return the ids of a text, or of messages with the chat template."""
        return list(self.stub.Tokenize(tokenize_request(prompt, model)).token_ids)

    def detokenize(
        self, token_ids: Sequence[int], model: str = "", *, skip_special_tokens: bool = True
    ) -> str:
        """Return the text of ids by themselves."""
        request = detokenize_request(token_ids, model, skip_special_tokens)
        return str(self.stub.Detokenize(request).text)
