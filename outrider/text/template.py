"""Chat templates: Jinja programs that come with a model and are not to be trusted."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from outrider.errors import InvalidField

Message = Mapping[str, Any]
"""A role, what is said as ``content``, and whatever else a template may read, as of JSON."""

# Variables of a template that have a place of their own in a request.
GIVEN = ("messages", "tools")
REASONING = ("reasoning_content", "thinking", "reasoning")
CUT = "CONTINUE_FINAL_MESSAGE_TAG"  # marks where the last message ends; transformers' own word


class ChatTemplate:
    """A compiled template that turns messages into the text of a prompt.

    Raises: ValueError if the text is no valid template.
    """

    __slots__ = ("_read_names", "_template", "_variables")

    def __init__(
        self,
        text: str,
        *,
        variables: Mapping[str, str],
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        environment = _environment(now)
        try:
            program = environment.parse(text)
            # Those with a default as well: a template that sets a name if it is undefined reads it.
            names = program.find_all(jinja2.nodes.Name)
            self._read_names = frozenset(each.name for each in names if each.ctx == "load")
            self._template = environment.from_string(program)
        except jinja2.TemplateError as error:
            raise ValueError(f"chat template: {error}") from error
        self._variables = dict(variables)

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Any] | None = None,
        variables: Mapping[str, Any] | None = None,
        continue_final_message: bool = False,
    ) -> str:
        """Return the prompt's text, up to where the assistant is to speak, or to go on.

        ``variables`` are further ones of the template; those that it has by itself give way.

        Raises: InvalidField naming the field of ``chat`` if there are no messages, one has no role,
            the template reads no tools or no such variable, the last message cannot be continued,
            or the template refuses what it reads.
        """
        if not messages:
            raise InvalidField("chat.messages", "no messages; at least one is needed")
        for index, message in enumerate(messages):
            if not message.get("role"):
                raise InvalidField(f"chat.messages[{index}].role", "empty")
        if tools is not None and "tools" not in self._read_names:
            raise InvalidField("chat.tools_json", "the model's chat template reads no tools")
        self._check_variables(variables or {}, continue_final_message)
        chat, final = [_plain(message) for message in messages], ""
        if continue_final_message:
            chat[-1], final = _marked(chat[-1])
        context = {
            **self._variables,
            "documents": None,
            "add_generation_prompt": not continue_final_message,
            **(variables or {}),
            "messages": chat,
            "tools": tools,
        }
        text = self._run(context)
        return _cut(text, final) if continue_final_message else text

    def _check_variables(self, variables: Mapping[str, Any], continues: bool) -> None:
        for name in variables:
            if name in GIVEN:
                raise InvalidField(f"chat.template_kwargs_json.{name}", "has a field of its own")
            if name not in self._read_names:
                refusal = "the model's chat template reads no such variable"
                raise InvalidField(f"chat.template_kwargs_json.{name}", refusal)
        if continues and variables.get("add_generation_prompt"):
            raise InvalidField("chat.continue_final_message", "excludes add_generation_prompt")

    def _run(self, context: Mapping[str, Any]) -> str:
        try:
            return self._template.render(context)
        # Any exception at all can come out of a foreign program, and none of them is our state's.
        except Exception as error:
            raise InvalidField("chat", f"the model's chat template refuses it: {error}") from error


def _plain(message: Message) -> dict[str, Any]:
    """Return the message as transformers hands it to a template.

    What is null is left out, since templates would write it; what the assistant thought is there
    under the names that templates read.
    """
    told = {name: value for name, value in message.items() if value is not None}
    thoughts = [told[name] for name in REASONING if name in told]
    return {"thinking": thoughts[0], **told, REASONING[0]: thoughts[0]} if thoughts else told


def _marked(message: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the last message with a mark at the end of its text, and the text."""
    field = "chat.continue_final_message"
    if message["role"] != "assistant":
        raise InvalidField(field, f"the last message is of {message['role']!r}, not of 'assistant'")
    content = message.get("content")
    if isinstance(content, str):
        return message | {"content": f"{content}{CUT} "}, content
    parts = list(content) if isinstance(content, list) else []
    for index, part in reversed(list(enumerate(parts))):
        if isinstance(part, dict) and isinstance(text := part.get("text"), str):
            parts[index] = part | {"text": f"{text}{CUT} "}
            return message | {"content": parts}, text
    raise InvalidField(field, "the last message has no text to continue")


def _cut(text: str, final: str) -> str:
    """Return the text up to the end of the last message, as far as the template tells it."""
    end = text.rfind(CUT)
    if end < 0 or final.strip() not in text:
        refusal = "the model's chat template changes or cuts the last message"
        raise InvalidField("chat.continue_final_message", refusal)
    # Where the space behind the mark is gone, the template trims messages.
    return text[:end] if text.startswith(f"{CUT} ", end) else text[:end].rstrip()


class _GenerationTag(jinja2.ext.Extension):
    """Accepts ``{% generation %}``, which only marks the assistant's part for training."""

    tags = {"generation"}

    def parse(self, parser: jinja2.parser.Parser) -> list[jinja2.nodes.Node]:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return [jinja2.nodes.Scope(body, lineno=lineno)]


class _Namespace(jinja2.utils.Namespace):
    """A namespace that keeps no attributes of Python's own."""

    def __init__(*args: Any, **kwargs: Any) -> None:  # a template may name a field "self"
        self, *rest = args
        fields = dict(*rest, **kwargs)
        for name in fields:
            _check_name(name)
        jinja2.utils.Namespace.__init__(self, fields)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _environment(now: Callable[[], datetime]) -> jinja2.Environment:
    environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[_GenerationTag, jinja2.ext.loopcontrols],
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda format: now().strftime(format)
    # Not the class itself, whose attributes would offer a way out of the sandbox.
    environment.globals["dict"] = _TemplateDict()
    environment.globals["namespace"] = _Namespace
    return environment


class _TemplateDict:
    """What a template knows as ``dict``, without the class's own attributes."""

    __slots__ = ()

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, keys: Iterable[Any], value: Any = None) -> dict[Any, Any]:
        return dict.fromkeys(keys, value)


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes HTML, which a model has never seen.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: str) -> None:
    raise jinja2.TemplateError(message)


def _check_name(name: object) -> None:
    if isinstance(name, str) and name.startswith("_"):
        raise jinja2.exceptions.SecurityError(f"a namespace cannot keep {name!r}")
