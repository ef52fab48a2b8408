"""Messages and tools of a conversation, as OpenAI writes them and as chat templates read them."""

import json
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, Field, model_validator

from openai_svc.constraints import STRICT
from openai_svc.parameters import Unsupported


def _parts(value: object) -> object:
    if isinstance(value, str):
        return [{"type": "text", "text": value}]
    if not isinstance(value, list | None):
        raise ValueError("must be a text or a list of parts")
    return value


class TextPart(BaseModel):
    """A part of what is said."""

    model_config = STRICT

    type: Literal["text"]
    text: str


class CalledFunction(BaseModel):
    """A function that the assistant called."""

    model_config = STRICT

    name: str
    arguments: str

    @property
    def parsed(self) -> dict[str, object]:
        """The call with its arguments as an object, which is how templates read them."""
        return {"name": self.name, "arguments": json.loads(self.arguments or "{}")}

    @model_validator(mode="after")
    def _has_an_object(self) -> Self:
        try:
            value = json.loads(self.arguments or "{}")
            json.dumps(value, ensure_ascii=False).encode()  # JSON can spell half a surrogate pair
            is_object = isinstance(value, dict)
        except (ValueError, RecursionError):
            is_object = False
        if not is_object:
            raise ValueError("arguments: must be a JSON object as text")
        return self


class ToolCall(BaseModel):
    """A call that the assistant made."""

    model_config = STRICT

    id: str
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(BaseModel):
    """One message; which fields it may have depends on who speaks."""

    model_config = STRICT

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: Annotated[list[TextPart] | None, BeforeValidator(_parts)] = None
    name: str | None = None
    tool_calls: list[ToolCall] | None = None
    tool_call_id: str | None = None
    refusal: Unsupported = None
    audio: Unsupported = None
    function_call: Unsupported = None

    @model_validator(mode="after")
    def _fits_its_role(self) -> Self:
        if self.tool_calls and self.role != "assistant":
            raise ValueError("tool_calls: only in messages of the assistant")
        if (self.tool_call_id is not None) != (self.role == "tool"):
            raise ValueError("tool_call_id: goes with the role tool, and only with it")
        if self.content is None and not self.tool_calls:
            raise ValueError("content: required")
        return self

    @property
    def for_template(self) -> dict[str, object]:
        """What the chat template gets; most know no developer, whose word is the system's."""
        message: dict[str, object] = {
            "role": "system" if self.role == "developer" else self.role,
            "content": "\n".join(part.text for part in self.content or ()),
        }
        if self.name is not None:
            message["name"] = self.name
        if self.tool_calls:
            message["tool_calls"] = [
                {"id": each.id, "type": each.type, "function": each.function.parsed}
                for each in self.tool_calls
            ]
        if self.tool_call_id is not None:
            message["tool_call_id"] = self.tool_call_id
        return message


class Function(BaseModel):
    """A function that the model may be told of."""

    model_config = STRICT

    name: str = Field(min_length=1)
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Tool(BaseModel):
    """A tool; all tools are functions."""

    model_config = STRICT

    type: Literal["function"]
    function: Function

    @property
    def for_template(self) -> dict[str, object]:
        """What the chat template gets: what was said, without ``strict``, of which it knows not."""
        return self.model_dump(exclude_none=True, exclude={"function": {"strict"}})
