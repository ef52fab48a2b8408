"""The body of /v1/completions."""

from collections.abc import Mapping
from typing import Annotated, Self

from pydantic import Field, PlainValidator, model_validator

from openai_svc.parameters import Parameters, Unsupported
from outrider.client import Prompt

DEFAULT_MAX_TOKENS = 16  # OpenAI's, for this endpoint alone
MAX_PROMPTS = 128


def _is_ids(value: object) -> bool:
    # Not isinstance, for which True is a number.
    return isinstance(value, list) and all(type(i) is int and 0 <= i < 2**32 for i in value)


def _prompts(value: object) -> list[str | list[int]]:
    """Return each prompt of a text, a list of ids, or a list of either."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value:
        if _is_ids(value):
            return [value]
        if len(value) > MAX_PROMPTS:
            raise ValueError(f"{len(value)} prompts, at most {MAX_PROMPTS}")
        if all(isinstance(each, str) for each in value) or all(map(_is_ids, value)):
            return list(value)
    raise ValueError("must be a text, texts, token ids or lists of token ids")


class CompletionBody(Parameters):
    """What a client of /v1/completions sent."""

    all_prompts: Annotated[list[str | list[int]], PlainValidator(_prompts)] = Field(alias="prompt")
    echo: bool | None = None
    logprobs: int | None = None

    best_of: Unsupported = None
    suffix: Unsupported = None

    @model_validator(mode="after")
    def _is_completion(self) -> Self:
        if self.echo and self.truncate_prompt_tokens is not None:
            raise ValueError("echo: not together with truncate_prompt_tokens")
        if self.echoes_logprobs and self.stream:
            raise ValueError("logprobs: not together with echo and stream")
        if self.is_echo_only and not self.echo:
            raise ValueError("max_tokens: 0 is only for an echo of the prompt")
        return self

    @property
    def prompts(self) -> list[Prompt]:
        """What is to be continued."""
        return list(self.all_prompts)

    @property
    def echoes_logprobs(self) -> bool:
        """True where the prompt comes back with its log probabilities."""
        return bool(self.echo) and self.logprobs is not None

    @property
    def is_echo_only(self) -> bool:
        """True where the prompt is wanted and nothing behind it."""
        return self.max_tokens == 0

    def _own_sampling(self) -> dict[str, object]:
        wanted = DEFAULT_MAX_TOKENS if self.max_tokens is None else self.max_tokens
        # The orchestrator always makes a token; of an echo alone nobody is shown it.
        own = {"max_tokens": 1 if self.is_echo_only else wanted, "logprobs": self.logprobs}
        if self.echoes_logprobs and self.prompt_logprobs is None:
            own["prompt_logprobs"] = self.logprobs
        return {name: value for name, value in own.items() if value is not None}

    def _own_names(self) -> Mapping[str, str]:
        return {
            "input": "prompt",
            "text": "prompt",
            "tokenized.input_ids": "prompt",
            "token_ids": "prompt",  # of an echo
        }
