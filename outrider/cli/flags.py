"""Flags of the commands: checks of their values, and their names in a server's errors."""

import re
from typing import Annotated

import typer

HOST_AND_PORT = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[^\s:/\[\]]+):(?P<port>\d{1,5})")
DEVICE = re.compile(r"cpu|cuda(:\d+)?")

# Fields of a request by the flag of ``outrider generate`` that fills them.
FIELDS = {
    "model": "--model",
    "speculation.sources": "--drafter",
    "speculation.num_draft_tokens": "--k",
    "speculation.acceptance_rule": "--rule",
    "speculation.trace_top_ids": "--top-ids",
    "input": "prompt",
    "chat": "--chat",
    **{
        f"sampling_params.{name}": f"--{name.replace('_', '-')}"
        for name in (
            "max_tokens",
            "min_tokens",
            "temperature",
            "top_p",
            "top_k",
            "min_p",
            "seed",
            "stop",
            "ignore_eos",
        )
    },
}


def by_flag(message: str) -> str:
    """Return an error text that begins with a field's name with the flag in its place."""
    field, colon, rest = message.partition(":")
    flag = FIELDS.get(re.sub(r"\[\d+\]$", "", field))
    return f"{flag}{colon}{rest}" if flag else message


def check_address(value: str) -> str:
    """Return host:port as it is; Raises: typer.BadParameter for anything else."""
    match = HOST_AND_PORT.fullmatch(value)
    if match is None or not 1 <= int(match["port"]) <= 65535:
        raise typer.BadParameter(f"{value!r} is not host:port, such as 127.0.0.1:50051")
    return value


def check_device(value: str) -> str:
    """Return the device as it is; Raises: typer.BadParameter for what no worker takes."""
    if DEVICE.fullmatch(value) is None:
        raise typer.BadParameter(f"{value!r} is not cpu, cuda or cuda:N")
    return value


Address = Annotated[
    str, typer.Option(help="host:port of the orchestrator.", callback=check_address)
]
Device = Annotated[
    str, typer.Option(help="cpu, cuda or cuda:N, for both models.", callback=check_device)
]
