"""A conversation as a client sends it: messages with fields of any kind, tools, variables."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from outrider.errors import InvalidField

MAX_MESSAGES = 1024
MAX_JSON_CHARACTERS = 2**18  # of one field


@dataclass(frozen=True, slots=True)
class Chat:
    """A conversation to answer, or whose last message is to be continued.

    ``tools`` None: none are told of; ``variables`` are further ones of the template.
    """

    messages: tuple[Mapping[str, Any], ...]
    tools: list[Any] | None = None
    variables: Mapping[str, Any] = field(default_factory=dict)
    continue_final_message: bool = False

    def __post_init__(self) -> None:
        if len(self.messages) > MAX_MESSAGES:
            limit = f"{len(self.messages)} messages, at most {MAX_MESSAGES}"
            raise InvalidField("chat.messages", limit)

    @classmethod
    def read(
        cls,
        messages: Iterable[tuple[str, str, str]],
        *,
        tools_json: str,
        template_kwargs_json: str,
        continue_final_message: bool,
    ) -> "Chat":
        """Read messages (role, content, further fields as JSON), tools and variables.

        Raises: InvalidField naming the field whose JSON is none, is too long, or says what it may
            not.
        """
        tools = _read("chat.tools_json", tools_json, list) if tools_json else None
        for index, tool in enumerate(tools or []):
            if not isinstance(tool, dict):
                raise InvalidField(f"chat.tools_json[{index}]", "is no JSON object")
        name = "chat.template_kwargs_json"
        return cls(
            tuple(_message(index, *message) for index, message in enumerate(messages)),
            tools,
            _read(name, template_kwargs_json, dict) if template_kwargs_json else {},
            continue_final_message,
        )


def _message(index: int, role: str, content: str, extra_json: str) -> dict[str, Any]:
    told: dict[str, Any] = {"role": role, "content": content}
    if not extra_json:
        return told
    name = f"chat.messages[{index}].extra_json"
    extra: dict[str, Any] = _read(name, extra_json, dict)
    if "role" in extra or ("content" in extra and content):
        twice = "role" if "role" in extra else "content"
        raise InvalidField(name, f"{twice} is a field of the message itself")
    return told | extra


def _read(name: str, text: str, kind: type[list[Any]] | type[dict[str, Any]]) -> Any:
    """Return what the JSON of a field says."""
    if len(text) > MAX_JSON_CHARACTERS:
        raise InvalidField(name, f"{len(text)} characters, at most {MAX_JSON_CHARACTERS}")
    try:
        value = json.loads(text, parse_constant=_refuse)
        json.dumps(value, ensure_ascii=False).encode()  # JSON can spell half a surrogate pair
    except RecursionError:
        raise InvalidField(name, "is nested too deeply") from None
    except ValueError as error:
        raise InvalidField(name, f"is no JSON: {error}") from None
    if not isinstance(value, kind):
        raise InvalidField(name, f"is no JSON {'array' if kind is list else 'object'}")
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no number of JSON")
