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
        default="",
        description="Folder or hub id of a draft model or a draft head; empty: lookup only.",
    )
    target_model: str = Field(
        default="",
        description="Folder or hub id of the target, for a draft head whose folder lacks the "
        "target's embeddings or tokenizer.",
    )
