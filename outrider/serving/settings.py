"""Settings of a service, from flags and environment variables; flags win."""

import difflib
import os
import re
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError
from pydantic_settings import (
    BaseSettings,
    CliApp,
    CliSettingsSource,
    NoDecode,
    SettingsConfigDict,
)


def _split(value: object) -> object:
    if isinstance(value, str):
        value = [value]
    if isinstance(value, list | tuple):
        # A flag may be repeated, and each may hold several: --drafter a:1 --drafter b:2,c:3
        return tuple(
            part.strip() for item in value for part in str(item).split(",") if part.strip()
        )
    return value


CommaSeparated = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]
"""Several strings: a flag that may repeat, or one value with commas (the way for variables)."""

ADDRESS = re.compile(
    r"(dns:(//[^/\s]*/)?)?"  # dns:name:port or dns://server/name:port
    r"(\[[0-9a-fA-F:.%\w]+\]|[^\s/:\[\]]+):(?P<port>[0-9]{1,5})"
)
# Targets of gRPC that name their peer in another way than by host and port.
OTHER_TARGETS = re.compile(r"(unix|unix-abstract|vsock|ipv4|ipv6):\S+")


def _check_address(value: str) -> str:
    match = ADDRESS.fullmatch(value)
    fits = match is not None and 1 <= int(match["port"]) <= 65535
    if not fits and not OTHER_TARGETS.fullmatch(value):
        raise ValueError(f"{value} is not host:port with a port from 1 to 65535")
    return value


def _check_addresses(values: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(map(_check_address, values))


Address = Annotated[str, AfterValidator(_check_address)]
"""Address of a peer: host:port, [v6]:port, or a target of gRPC."""

Addresses = Annotated[
    tuple[str, ...], NoDecode, BeforeValidator(_split), AfterValidator(_check_addresses)
]
"""Addresses of peers, several like CommaSeparated: host:port, [v6]:port, or a target of gRPC."""


class ServiceSettings(BaseSettings):
    """What every service can be told.

    A service adds its own fields, ``env_prefix`` and ``cli_prog_name``; the docstring of its class
    is the head of its ``--help``, the description of each field the line beside the flag.
    """

    model_config = SettingsConfigDict(
        frozen=True,
        extra="forbid",
        cli_kebab_case=True,
        cli_implicit_flags=True,
        cli_hide_none_type=True,
        cli_avoid_json=True,
        cli_show_env_vars=True,
    )

    host: str = Field(
        default="127.0.0.1",
        min_length=1,
        description="Address to listen on; 0.0.0.0 listens on every interface.",
    )
    port: int = Field(
        default=0, ge=0, le=65535, description="Port to listen on; 0 takes a free one."
    )
    metrics_port: int = Field(
        default=0,
        ge=0,
        le=65535,
        description="Port that answers Prometheus on /metrics; 0 opens none.",
    )
    port_file: Path | None = Field(
        default=None, description="File that gets host:port as soon as the port is open."
    )
    grace_s: float = Field(
        default=30.0,
        gt=0,
        le=3600,
        description="Seconds that running RPCs may take to finish after SIGTERM.",
    )
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Least severe level that is logged."
    )


# What --help shows for a value of this type.
VALUE_NAMES = {
    "Path": "FILE",
    "float": "NUMBER",
    "int": "INTEGER",
    "str": "TEXT",
    "tuple[str,...]": "A,B",
}

Settings = TypeVar("Settings", bound=ServiceSettings)


def parse_settings(settings: type[Settings], arguments: Sequence[str]) -> Settings:
    """The settings that flags and environment give; nothing misspelt is dropped in silence.

    Raises: SystemExit with code 2 after all faults were printed, one a line; with 0 on --help.
    """
    unknown: list[str] = []

    def parse_known(
        parser: ArgumentParser, args: list[str] | None = None, namespace: Namespace | None = None
    ) -> Namespace:
        known, rest = parser.parse_known_args(args, namespace)
        unknown.extend(rest)  # argparse would stop at these, before the values are looked at
        return known

    source: CliSettingsSource[Settings] = CliSettingsSource(
        settings, parse_args_method=parse_known, add_argument_method=_add_argument
    )
    faults = _unknown_variables(settings)
    parsed = None
    try:
        parsed = CliApp.run(settings, cli_args=list(arguments), cli_settings_source=source)
    except ValidationError as error:
        faults += [_fault(settings, location=each["loc"], detail=each) for each in error.errors()]
    faults += _unknown_arguments(settings, unknown)
    if parsed is not None and not faults:
        return parsed
    program = settings.model_config.get("cli_prog_name") or settings.__name__
    lines = [f"{program}: these settings are wrong:", *(f"  {fault}" for fault in faults)]
    lines.append(f"{program} --help lists every setting.")
    sys.stderr.write("\n".join(lines) + "\n")
    raise SystemExit(2)


def _add_argument(parser: ArgumentParser, *names: str, **options: Any) -> object:
    """Add a flag whose value is shown as a person would write it, not as its Python type."""
    shown = options.get("metavar")
    if isinstance(shown, str):
        options["metavar"] = VALUE_NAMES.get(shown, shown)
    return parser.add_argument(*names, **options)


def _flag(field: str) -> str:
    return f"--{field.replace('_', '-')}"


def _variable(settings: type[ServiceSettings], field: str) -> str:
    return f"{settings.model_config.get('env_prefix', '')}{field}".upper()


def _unknown_variables(settings: type[ServiceSettings]) -> list[str]:
    prefix = settings.model_config.get("env_prefix", "").upper()
    known = [_variable(settings, field) for field in settings.model_fields]
    return [
        f"{name}: no such setting{_hint(name, known)}"
        for name in sorted(os.environ)
        if prefix and name.upper().startswith(prefix) and name.upper() not in known
    ]


def _unknown_arguments(settings: type[ServiceSettings], arguments: Sequence[str]) -> list[str]:
    known = [_flag(field) for field in settings.model_fields]
    faults = []
    for previous, argument in zip(["", *arguments], arguments, strict=False):
        is_value = not argument.startswith("-") and previous.startswith("-")
        if not is_value:
            faults.append(f"{argument}: no such option{_hint(argument, known)}")
    return faults


def _fault(
    settings: type[ServiceSettings],
    *,
    location: tuple[int | str, ...],
    detail: Mapping[str, object],
) -> str:
    if not location:  # a check across fields names them itself
        return str(detail["msg"])
    field = str(location[0])
    where = f"{_flag(field)} ({_variable(settings, field)})"
    if detail["type"] == "missing":
        return f"{where}: required"
    message = str(detail["msg"]).removeprefix("Value error, ")
    return f"{where}: {message}, got {detail['input']!r}"


def _hint(name: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(name.split("=")[0], known, n=1)
    return f"; did you mean {close[0]}?" if close else ""
