"""Flags of the commands: checks of their values, and their names in a server's errors."""

import re
from typing import Annotated

import typer

HOST_AND_PORT = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[^\s:/\[\]]+):(?P<port>\d{1,5})")
BIAS = re.compile(r"(?P<id>\d{1,10})=(?P<value>[+-]?(\d+(\.\d*)?|\.\d+))")
DEVICE = re.compile(r"cpu|cuda(:\d+)?")

DEFAULT_ADDRESS = "127.0.0.1:50051"

# Fields of a request by the flag of ``outrider generate`` that fills them.
FIELDS = {
    "model": "--model",
    "speculation.sources": "--drafter",
    "speculation.num_draft_tokens": "--k",
    "speculation.min_draft_tokens": "--min-draft-tokens",
    "speculation.max_draft_tokens": "--max-draft-tokens",
    "speculation.acceptance_rule": "--rule",
    "speculation.trace_top_ids": "--top-ids",
    "input": "prompt",
    "chat": "--chat",
    "chat.tools_json": "--tools",
    "sampling_params.include_stop_str_in_output": "--include-stop",
    "sampling_params.allowed_token_ids": "--allow-token",
    "sampling_params.banned_token_ids": "--ban-token",
    "sampling_params.bad_words": "--bad-word",
    "sampling_params.choice.choices": "--choice",
    "sampling_params.constraint_after": "--after",
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
            "n",
            "truncate_prompt_tokens",
            "presence_penalty",
            "frequency_penalty",
            "repetition_penalty",
            "logit_bias",
            "logprobs",
            "json_schema",
            "json_object",
            "regex",
            "grammar",
            "choice",
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


def biases(values: list[str]) -> tuple[tuple[int, float], ...]:
    """Read ID=VALUE pairs; Raises: typer.BadParameter for anything else and for an id twice."""
    found: dict[int, float] = {}
    for value in values:
        match = BIAS.fullmatch(value)
        if match is None:
            raise typer.BadParameter(f"{value!r} is not ID=VALUE, such as 42=-1.5")
        token_id = int(match["id"])
        if token_id in found:
            raise typer.BadParameter(f"{token_id} is there twice")
        found[token_id] = float(match["value"])
    return tuple(sorted(found.items()))


def check_biases(values: list[str] | None) -> list[str]:
    """Return the pairs as they are; Raises: typer.BadParameter as ``biases`` does."""
    biases(values or [])
    return values or []


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
