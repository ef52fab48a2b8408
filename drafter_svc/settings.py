"""Settings of the drafter."""

from pydantic import Field
from pydantic_settings import SettingsConfigDict

from outrider.hosting import ModelSettings


class DrafterSettings(ModelSettings):
    """Propose draft tokens with a draft model, by n-gram lookup, or both.

    Example: outrider drafter --model build/models/smollm2-135m-instruct-draft --port 50053
    """

    model_config = SettingsConfigDict(env_prefix="DRAFTER_", cli_prog_name="outrider drafter")

    model: str = Field(
        default="", description="Folder or hub id of the draft model; empty: lookup only."
    )
