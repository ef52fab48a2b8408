"""What ``outrider generate`` sends and prints."""

import json
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
from google.protobuf.json_format import MessageToDict
from rich.console import Console

from outrider.cli.render import logprobs_table, plain_console, print_chunk, receipt_table
from outrider.client import Choice, Client
from outrider.errors import InvalidField
from outrider.v1 import generation_pb2 as pb


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the flags say about the prompt.

    Raises: InvalidField for what needs --chat.
    """

    text: str
    is_chat: bool
    system: str
    tools: Path | None

    def __post_init__(self) -> None:
        if self.is_chat:
            return
        for flag, given in (("--system", self.system), ("--tools", self.tools)):
            if given:
                raise InvalidField(flag, "needs --chat; a plain prompt has no messages")

    @property
    def messages_or_text(self) -> str | list[tuple[str, str]]:
        """The messages of a chat, else the text."""
        if not self.is_chat:
            return self.text
        system = [("system", self.system)] if self.system else []
        return [*system, ("user", self.text)]


@dataclass(frozen=True, slots=True)
class GenerateOptions:
    """What is asked, of whom, and how it is shown."""

    address: str
    request: pb.GenerateRequest
    as_json: bool
    timeout_s: float


def read_tools(path: Path) -> list[Any]:
    """Return the tools of a file; Raises: InvalidField if it holds no JSON array."""
    try:
        tools = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise InvalidField("--tools", f"{path} is no JSON: {error}") from None
    if not isinstance(tools, list):
        raise InvalidField("--tools", f"{path} holds no JSON array")
    return tools


async def run_generate(options: GenerateOptions) -> None:
    """Run one request and print it.

    Raises: TimeoutError where the flag's deadline ended it; grpc.aio.AioRpcError for any other
        failure.
    """
    show = _print_json if options.as_json else _print_stream
    try:
        async with Client(options.address) as client:
            await show(plain_console(), client, options.request, options.timeout_s)
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
            raise
        raise TimeoutError(
            f"--timeout-s: the request was not done within {options.timeout_s:g} s"
        ) from error


async def _print_json(
    console: Console, client: Client, request: pb.GenerateRequest, timeout_s: float
) -> None:
    """Print the choice, or a list of them where more than one was asked for."""
    output = await client.generate(request, timeout_s=timeout_s)
    told = [_fields(choice) for choice in output.choices]
    console.print_json(data={"choices": told} if request.sampling_params.n > 1 else told[0])


def _fields(choice: Choice) -> dict[str, Any]:
    fields = MessageToDict(choice.complete, preserving_proto_field_name=True)
    return {"text": choice.text, **fields}


async def _print_stream(
    console: Console, client: Client, request: pb.GenerateRequest, timeout_s: float
) -> None:
    """Print a lone choice as it comes, several one after another as they end."""
    several = request.sampling_params.n > 1
    chunks: defaultdict[int, list[pb.GenerateChunk]] = defaultdict(list)
    in_line = False
    try:
        async for response in client.stream(request, timeout_s=timeout_s):
            if response.WhichOneof("kind") == "chunk":
                chunks[response.chunk.index].append(response.chunk)
                if not several:
                    print_chunk(console, response.chunk)
                    in_line = True
                continue
            index = response.complete.index
            if several:
                console.print(f"choice {index}", style="bold")
                for chunk in chunks[index]:
                    print_chunk(console, chunk)
            console.print()
            in_line = False
            if response.complete.logprobs:
                console.print(logprobs_table(chunks[index]))
            console.print(receipt_table(response.complete.receipt))
    finally:
        if in_line:  # an error that follows begins a line of its own
            console.print()
