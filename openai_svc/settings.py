"""Settings of the OpenAI front door."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from outrider.serving.settings import Address, ServiceSettings


class FrontDoorSettings(ServiceSettings):
    """Answer OpenAI's clients over HTTP with what an orchestrator generates.

    Example: outrider openai --orchestrator 127.0.0.1:50051 --port 8000
    """

    # Not OPENAI_, under which OpenAI's own clients are told their key.
    model_config = SettingsConfigDict(env_prefix="OPENAI_SVC_", cli_prog_name="outrider openai")

    orchestrator: Address = Field(description="Address of the orchestrator (host:port).")
    timeout_s: float = Field(
        default=3600.0,
        gt=0,
        le=86400,
        description="Seconds after which a request that is still running is ended.",
    )
