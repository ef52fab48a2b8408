"""Settings of the orchestrator."""

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, model_validator
from pydantic_settings import SettingsConfigDict

from orchestrator.step_time import StepTime
from orchestrator.worker import MAX_FAILURES
from outrider.draft import MAX_OUTCOMES
from outrider.errors import PolicyError
from outrider.policy import Policy, policy_of_flags, read_policy
from outrider.sampling import AcceptanceRule
from outrider.serving.settings import Addresses, CommaSeparated, ServiceSettings

# Settings that make up the policy where there is no file of one.
POLICY_SETTINGS = (
    "sources",
    "num_draft_tokens",
    "max_draft_tokens",
    "draft_wait_ms",
    "lookup_on_miss",
    "acceptance_rule",
    "max_outcomes",
)


def _readable(path: Path) -> Path:
    try:
        read_policy(path)
    except PolicyError as error:
        raise ValueError(str(error)) from None
    return path


class OrchestratorSettings(ServiceSettings):
    """Own sequences, pair drafters with verifiers, and serve Generate to clients.

    Example: outrider orchestrator --verifier 127.0.0.1:50052 --drafter 127.0.0.1:50053 --port 50051
    """

    model_config = SettingsConfigDict(
        env_prefix="ORCHESTRATOR_", cli_prog_name="outrider orchestrator"
    )

    verifier: Addresses = Field(
        min_length=1, description="Verifier addresses (host:port), repeated or with commas."
    )
    drafter: Addresses = Field(
        default=(), description="Drafter addresses (host:port), repeated or with commas."
    )
    max_running: int = Field(
        default=64,
        ge=1,
        le=4096,
        description="Requests that are decoded at once; every choice counts.",
    )
    max_waiting: int = Field(
        default=256, ge=0, le=65536, description="Requests that may wait; more are refused."
    )
    policy: Annotated[Path, AfterValidator(_readable)] | None = Field(
        default=None,
        description="Policy file (YAML), in place of the settings of drafts below; "
        "SIGHUP reads it again.",
    )
    receipt_log: Path | None = Field(
        default=None,
        description="File that gets every receipt as a line of JSON; SIGHUP opens it anew.",
    )
    max_receipts: int = Field(
        default=4096, ge=0, le=1_000_000, description="Requests whose receipts can be asked for."
    )
    max_receipt_age_s: float = Field(
        default=3600.0, gt=0, le=604_800, description="Seconds for which they can."
    )
    sources: CommaSeparated = Field(
        default=(),
        description="Draft sources in order of preference; empty leaves it to the drafter. "
        "With lookup, the orchestrator's own, first no drafter is asked.",
    )
    num_draft_tokens: Annotated[int, Field(ge=0, le=64)] | Literal["auto"] = Field(
        default="auto",
        description="Tokens per draft, or auto for as many as pay; 0 turns speculation off.",
    )
    max_draft_tokens: int = Field(
        default=32,
        ge=1,
        le=64,
        description="Longest draft that a request may ask for, and that auto chooses.",
    )
    max_worker_failures: int = Field(
        default=MAX_FAILURES,
        ge=1,
        le=1_000_000,
        description="Failures in a row after which a worker is left alone for a while.",
    )
    max_outcomes: Annotated[int, Field(ge=1, le=MAX_OUTCOMES)] | Literal["auto"] = Field(
        default=1,
        description="Outcomes of a verification that the drafter prepares for meanwhile, or auto "
        "for as many as are ready in time.",
    )
    draft_wait_ms: float = Field(
        default=100.0,
        ge=0,
        le=10_000,
        description="Milliseconds that a verification may wait for a draft; 0 never waits.",
    )
    min_step_timeout_s: float = Field(
        default=5.0,
        gt=0,
        le=3600,
        description="Seconds before which no verifier is given up for not answering.",
    )
    step_timeout_factor: float = Field(
        default=10.0,
        gt=0,
        le=1000,
        description="Verifiers are given up after this many times a verification's expected time.",
    )
    priority_budget: float = Field(
        default=0.1,
        ge=0,
        le=10,
        description="Share by which drafts of lower priorities may lengthen passes of higher ones.",
    )
    lookup_on_miss: bool = Field(
        default=True, description="Draft by n-gram lookup where the drafter has nothing ready."
    )
    acceptance_rule: AcceptanceRule = Field(
        default=AcceptanceRule.COUPLED,
        description="What decides about draft tokens of sampled requests that name no rule.",
    )
    canary: bool = Field(
        default=True,
        description="Use a drafter only once it was seen to leave a greedy output as it is.",
    )
    replay_share: float = Field(
        default=0.0,
        ge=0,
        le=1,
        description="Share of the requests with drafts that the monitor watches: their tokens are "
        "tested against the target's law, and their outputs made again without drafts.",
    )
    alarm_evidence: float = Field(
        default=9.0,
        ge=3,
        le=100,
        description="Evidence against the target's law that raises the alarm; under the right law "
        "10 to the power of it tokens pass, on average, before it does.",
    )
    allow_template_difference: CommaSeparated = Field(
        default=(),
        description="Drafter addresses whose chat template may differ from the target's.",
    )

    @property
    def step_time(self) -> StepTime:
        """What is expected of a verifier that has not answered yet; a new one at every call."""
        return StepTime(self.min_step_timeout_s, self.step_timeout_factor)

    @model_validator(mode="after")
    def _check_policy(self) -> Self:
        """Refuse settings that a policy file would silently overrule."""
        fields = type(self).model_fields
        set_too = [
            f"--{name.replace('_', '-')}"
            for name in POLICY_SETTINGS
            if getattr(self, name) != fields[name].default
        ]
        if self.policy is not None and set_too:
            raise ValueError(f"--policy: excludes {', '.join(set_too)}; the file says it all")
        return self

    @property
    def policy_of_flags(self) -> Policy:
        """The speculation policy where no file says one."""
        return policy_of_flags(
            sources=self.sources,
            num_draft_tokens=self.num_draft_tokens,
            max_draft_tokens=self.max_draft_tokens,
            draft_wait_ms=self.draft_wait_ms,
            lookup_on_miss=self.lookup_on_miss,
            rule=self.acceptance_rule,
            max_outcomes=self.max_outcomes,
        )
