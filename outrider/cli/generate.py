"""``outrider generate``."""

from collections.abc import Mapping
from dataclasses import dataclass

from google.protobuf.json_format import MessageToDict
from rich.console import Console

from outrider.cli.render import print_chunk, receipt_table
from outrider.client import Client, generate_request
from outrider.errors import InvalidField
from outrider.sampling import SamplingParams
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
    sampling: Mapping[str, object]
    as_json: bool
    timeout_s: float


async def run_generate(options: GenerateOptions) -> None:
    """Run one request and print it."""
    request = _request(options)
    console = Console(highlight=False)
    async with Client(options.address) as client:
        if options.as_json:
            output = await client.generate(request, timeout_s=options.timeout_s)
            fields = MessageToDict(output.complete, preserving_proto_field_name=True)
            console.print_json(data={"text": output.text, **fields})
            return
        async for response in client.stream(request, timeout_s=options.timeout_s):
            if response.WhichOneof("kind") == "chunk":
                print_chunk(console, response.chunk)
            else:
                console.print()
                console.print(receipt_table(response.complete))


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
    )
