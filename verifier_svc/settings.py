"""Settings of the verifier."""

from pydantic_settings import SettingsConfigDict

from outrider.hosting import ModelSettings


class VerifierSettings(ModelSettings):
    """Run the target model and check drafts.

    Example: outrider verifier --model build/models/smollm2-135m-instruct --port 50052
    """

    model_config = SettingsConfigDict(env_prefix="VERIFIER_", cli_prog_name="outrider verifier")
