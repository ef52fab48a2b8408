"""The parameters that both endpoints share, as OpenAI and other servers name them."""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, BeforeValidator, Field, model_validator

from openai_svc.constraints import STRICT, STRUCTURED_FIELDS, ResponseFormat, StructuredOutputs
from outrider.client import Prompt
from outrider.sampling import AcceptanceRule, Constraint, SamplingParams

Unsigned = Annotated[int, Field(ge=0, lt=2**32)]
TokenId = Unsigned


def _one_or_more(value: object) -> object:
    return [value] if isinstance(value, str) else value


def _unsupported(value: object) -> None:
    if value is not None:
        raise ValueError("is not supported")


def only(*neutral: object) -> AfterValidator:
    """Accept only values that change nothing, and null."""

    def check(value: object) -> object:
        # By type as well: 1 is no way to say True.
        if value is not None and (type(value), value) not in [(type(n), n) for n in neutral]:
            allowed = " or ".join(json.dumps(each) for each in neutral)
            raise ValueError(f"{json.dumps(value)} is not supported, only {allowed}")
        return value

    return AfterValidator(check)


Unsupported = Annotated[Any, AfterValidator(_unsupported)]
OnlyFalse = Annotated[Any, only(False)]
OnlyTrue = Annotated[Any, only(True)]
Ignored = Any
"""Says something about the caller, nothing about the answer. docs/api.md lists these."""


class StreamOptions(BaseModel):
    """What a stream tells beside the text."""

    model_config = STRICT

    include_usage: bool | None = None
    include_obfuscation: OnlyFalse = None


class Speculation(BaseModel):
    """How the request may be speculated on; the fields of SpeculationOptions."""

    model_config = STRICT

    target_only: bool | None = None
    sources: list[str] | None = None
    num_draft_tokens: Unsigned | None = None
    min_draft_tokens: Unsigned | None = None
    max_draft_tokens: Unsigned | None = None
    acceptance_rule: Literal["coupled", "rejection", "block"] | None = None

    @property
    def options(self) -> dict[str, Any]:
        """Keywords of ``generate_request``."""
        options = self.model_dump(exclude_none=True)
        if self.acceptance_rule is not None:
            options["acceptance_rule"] = AcceptanceRule(self.acceptance_rule)
        return options


# Sampling parameters that have one name everywhere.
SAME_NAME = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "min_tokens",
    "skip_special_tokens",
    "ignore_eos",
    "n",
    "seed",
    "include_stop_str_in_output",
    "truncate_prompt_tokens",
    "prompt_logprobs",
)
LISTS = ("stop", "stop_token_ids", "allowed_token_ids", "banned_token_ids", "bad_words")


class Parameters(BaseModel, ABC):
    """A body; null means the same as a parameter that is not there."""

    model_config = STRICT

    model: str | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None

    temperature: float | None = None
    top_p: float | None = None
    n: int | None = None
    stop: Annotated[list[str] | None, BeforeValidator(_one_or_more)] = None
    seed: int | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    logit_bias: dict[TokenId, float] | None = None
    max_tokens: int | None = None
    response_format: ResponseFormat | None = None

    # Of other servers.
    top_k: int | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    min_tokens: int | None = None
    ignore_eos: bool | None = None
    skip_special_tokens: bool | None = None
    stop_token_ids: list[TokenId] | None = None
    include_stop_str_in_output: bool | None = None
    # An empty list would read as no restriction on the wire, which is not what it says.
    allowed_token_ids: list[TokenId] | None = Field(default=None, min_length=1)
    banned_token_ids: list[TokenId] | None = None
    bad_words: list[str] | None = None
    structured_outputs: StructuredOutputs | None = None
    truncate_prompt_tokens: int | None = None
    prompt_logprobs: int | None = None
    priority: int | None = Field(default=None, ge=-(2**31), lt=2**31)
    cache_salt: str | None = None

    # Our own.
    speculation: Speculation | None = None
    outrider_receipt: bool | None = None

    user: Ignored = None
    metadata: Ignored = None
    safety_identifier: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_retention: Ignored = None
    service_tier: Annotated[Any, only("auto", "default")] = None
    store: OnlyFalse = None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.stream_options is not None and not self.stream:
            raise ValueError("stream_options: only together with stream")
        if self.prompt_logprobs is not None and self.stream:
            raise ValueError("prompt_logprobs: not together with stream")
        if self._formats and self.structured_outputs is not None:
            raise ValueError("structured_outputs: not together with response_format")
        return self

    @property
    def _formats(self) -> bool:
        return self.response_format is not None and self.response_format.type != "text"

    @property
    def includes_usage(self) -> bool:
        """True where a stream ends with its usage."""
        return self.stream_options is not None and bool(self.stream_options.include_usage)

    @property
    def num_choices(self) -> int:
        """Choices for each prompt."""
        return 1 if self.n is None else self.n

    def sampling(self) -> SamplingParams:
        """Return the parameters; Raises: InvalidField naming one and its limit."""
        values = {name: getattr(self, name) for name in SAME_NAME}
        values |= {name: tuple(getattr(self, name) or ()) for name in LISTS}
        values |= {"logit_bias": tuple(sorted((self.logit_bias or {}).items()))}
        values |= {"constraint": self._constraint, **self._own_sampling()}
        return SamplingParams(**{k: value for k, value in values.items() if value is not None})

    @property
    def _constraint(self) -> Constraint | None:
        if self.structured_outputs is not None:
            return self.structured_outputs.constraint
        return None if self.response_format is None else self.response_format.constraint

    def options(self) -> dict[str, Any]:
        """Return keywords of ``generate_request`` beside the prompt and its sampling."""
        options = {} if self.speculation is None else self.speculation.options
        return {
            **options,
            "model": self.model or "",
            "cache_salt": self.cache_salt or "",
            "priority": self.priority or 0,
        }

    def param(self, field: str) -> str:
        """Return this body's name of a field of the orchestrator's request."""
        path = field.removeprefix("sampling_params.")
        names = {**STRUCTURED_FIELDS, **self._own_names()}
        begins = (each for each in names if f"{path}.".startswith((f"{each}.", f"{each}[")))
        known = max(begins, key=len, default="")
        if known in STRUCTURED_FIELDS and self._formats:
            return "response_format"
        return names[known] + path.removeprefix(known) if known else path

    @property
    @abstractmethod
    def prompts(self) -> list[Prompt]:
        """What is to be continued, each by a call of its own."""

    @abstractmethod
    def _own_sampling(self) -> dict[str, object]:
        """Sampling parameters that the endpoint says in its own way."""

    @abstractmethod
    def _own_names(self) -> Mapping[str, str]:
        """Parameters of this body by the field of the orchestrator's request."""
