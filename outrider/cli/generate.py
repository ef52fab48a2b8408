"""``outrider generate``."""

from collections.abc import Mapping
from dataclasses import dataclass

import grpc
from google.protobuf.json_format import MessageToDict
from rich.console import Console

from outrider.cli.render import plain_console, print_chunk, receipt_table
from outrider.client import Client, generate_request
from outrider.errors import InvalidField
from outrider.sampling import AcceptanceRule, SamplingParams
from outrider.v1 import generation_pb2 as pb


@dataclass(frozen=True, slots=True)
class GenerateOptions:
    """What the flags say."""

    address: str
    prompt: str
    model: str
    chat: bool
    system: str
    target_only: bool
    source: str
    num_draft_tokens: int
    rule: AcceptanceRule | None
    sampling: Mapping[str, object]
    priority: int
    as_json: bool
    timeout_s: float


async def run_generate(options: GenerateOptions) -> None:
    """Run one request and print it.

    Raises: InvalidField for what cannot be asked for; TimeoutError where the flag's deadline
        ended it; grpc.aio.AioRpcError for any other failure.
    """
    request = _request(options)
    show = _print_json if options.as_json else _print_stream
    try:
        async with Client(options.address) as client:
            await show(plain_console(), client, request, options.timeout_s)
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
            raise
        raise TimeoutError(
            f"--timeout-s: the request was not done within {options.timeout_s:g} s"
        ) from error


async def _print_json(
    console: Console, client: Client, request: pb.GenerateRequest, timeout_s: float
) -> None:
    output = await client.generate(request, timeout_s=timeout_s)
    fields = MessageToDict(output.complete, preserving_proto_field_name=True)
    console.print_json(data={"text": output.text, **fields})


async def _print_stream(
    console: Console, client: Client, request: pb.GenerateRequest, timeout_s: float
) -> None:
    in_line = False
    try:
        async for response in client.stream(request, timeout_s=timeout_s):
            if response.WhichOneof("kind") == "chunk":
                print_chunk(console, response.chunk)
                in_line = True
            else:
                console.print()
                in_line = False
                console.print(receipt_table(response.complete.receipt))
    finally:
        if in_line:  # an error that follows begins a line of its own
            console.print()


def _request(options: GenerateOptions) -> pb.GenerateRequest:
    sampling = SamplingParams(**options.sampling)  # type: ignore[arg-type]
    messages = [("user", options.prompt)]
    if options.system and not options.chat:
        raise InvalidField("--system", "needs --chat; a plain prompt has no messages")
    if options.system:
        messages.insert(0, ("system", options.system))
    return generate_request(
        messages if options.chat else options.prompt,
        sampling,
        model=options.model,
        target_only=options.target_only,
        sources=[options.source] if options.source else [],
        num_draft_tokens=options.num_draft_tokens or None,
        acceptance_rule=options.rule,
        priority=options.priority,
    )
