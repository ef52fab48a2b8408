"""Settings of the OpenAI front door."""

import re
from typing import Annotated

from pydantic import AfterValidator, Field
from pydantic_settings import SettingsConfigDict

from outrider.serving.request_id import REQUEST_ID_KEY
from outrider.serving.settings import Address, CommaSeparated, ServiceSettings

# What gRPC takes as the key of a text; the request id has its own way.
KEY = re.compile(rf"(?!grpc-|{REQUEST_ID_KEY}$)[0-9a-z_.-]+(?<!-bin)")


def _check_keys(values: tuple[str, ...]) -> tuple[str, ...]:
    keys = tuple(value.lower() for value in values)
    for key in keys:
        if not KEY.fullmatch(key):
            raise ValueError(f"{key} cannot be metadata of gRPC")
    return keys


class FrontDoorSettings(ServiceSettings):
    """Answer OpenAI's clients over HTTP with what an orchestrator generates.

    Example: outrider openai --orchestrator 127.0.0.1:50051 --port 8000
    """

    # Not OPENAI_, under which OpenAI's own clients are told their key.
    model_config = SettingsConfigDict(env_prefix="OPENAI_SVC_", cli_prog_name="outrider openai")

    orchestrator: Address = Field(description="Address of the orchestrator (host:port).")
    forward_header: Annotated[CommaSeparated, AfterValidator(_check_keys)] = Field(
        default=(),
        description="Headers that go on as metadata, which a policy may look at; repeated or with "
        "commas.",
    )
    timeout_s: float = Field(
        default=3600.0,
        gt=0,
        le=86400,
        description="Seconds after which a request that is still running is ended.",
    )
