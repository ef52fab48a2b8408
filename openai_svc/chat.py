"""The body of /v1/chat/completions."""

import json
from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import AfterValidator, Field, model_validator

from openai_svc.messages import Message, Tool
from openai_svc.parameters import OnlyTrue, Parameters, Unsupported, only
from outrider.client import Prompt


def _tool_choice(value: object) -> object:
    if value not in (None, "none", "auto"):
        raise ValueError(
            f"{json.dumps(value)} is not supported, only none or auto; structured_outputs makes "
            "the answer take a form"
        )
    return value


class ChatBody(Parameters):
    """What a client of /v1/chat/completions sent."""

    messages: list[Message] = Field(min_length=1)
    max_completion_tokens: int | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = None
    tools: list[Tool] | None = None
    tool_choice: Annotated[Any, AfterValidator(_tool_choice)] = None
    parallel_tool_calls: OnlyTrue = None
    modalities: Annotated[Any, only(["text"])] = None

    # Of other servers.
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: dict[str, Any] | None = None

    audio: Unsupported = None
    function_call: Unsupported = None
    functions: Unsupported = None
    moderation: Unsupported = None
    prediction: Unsupported = None
    reasoning_effort: Unsupported = None
    verbosity: Unsupported = None
    web_search_options: Unsupported = None

    @model_validator(mode="after")
    def _is_chat(self) -> Self:
        if self.max_tokens is not None and self.max_completion_tokens is not None:
            raise ValueError("max_tokens: not together with max_completion_tokens")
        if self.top_logprobs is not None and not self.logprobs:
            raise ValueError("top_logprobs: only together with logprobs")
        continues = bool(self.continue_final_message)
        if self.add_generation_prompt is not None and self.add_generation_prompt == continues:
            raise ValueError("add_generation_prompt: false goes with continue_final_message")
        if continues and self.messages[-1].role != "assistant":
            raise ValueError("continue_final_message: the last message is not the assistant's")
        return self

    @property
    def prompts(self) -> list[Prompt]:
        """The conversation."""
        return [[message.for_template for message in self.messages]]

    def options(self) -> dict[str, Any]:
        """Return keywords of ``generate_request``, those of the template with them."""
        tools = () if self.tool_choice == "none" else self.tools or ()
        return {
            **super().options(),
            "tools": [tool.for_template for tool in tools],
            "template_kwargs": self.chat_template_kwargs,
            "continue_final_message": bool(self.continue_final_message),
        }

    def _own_sampling(self) -> dict[str, object]:
        limit = self.max_completion_tokens
        return {
            "max_tokens": self.max_tokens if limit is None else limit,
            "logprobs": (self.top_logprobs or 0) if self.logprobs else None,
        }

    def _own_names(self) -> Mapping[str, str]:
        has_new_name = self.max_completion_tokens is not None
        return {
            "max_tokens": "max_completion_tokens" if has_new_name else "max_tokens",
            "logprobs": "logprobs" if self.top_logprobs is None else "top_logprobs",
            "input": "messages",
            "chat": "messages",
            "chat.messages": "messages",
            "chat.tools_json": "tools",
            "chat.template_kwargs_json": "chat_template_kwargs",
            "chat.continue_final_message": "continue_final_message",
        }
