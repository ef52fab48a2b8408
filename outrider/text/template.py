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


class ChatTemplate:
    """A compiled template that turns messages into the text of a prompt.

    Raises: ValueError if the text is no valid template.
    """

    __slots__ = ("_template", "_variables")

    def __init__(
        self,
        text: str,
        *,
        variables: Mapping[str, str],
        now: Callable[[], datetime] = datetime.now,
    ) -> None:
        try:
            self._template = _environment(now).from_string(text)
        except jinja2.TemplateError as error:
            raise ValueError(f"chat template: {error}") from error
        self._variables = dict(variables)

    def render(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Return the prompt's text, up to where the assistant is to speak.

        Raises: InvalidField naming ``chat`` if there are no messages, one has no role or the
            template refuses them.
        """
        if not messages:
            raise InvalidField("chat.messages", "no messages; at least one is needed")
        for index, message in enumerate(messages):
            if not message.get("role"):
                raise InvalidField(f"chat.messages[{index}].role", "empty")
        try:
            return self._template.render(
                **self._variables,
                messages=[dict(message) for message in messages],
                tools=None,
                documents=None,
                add_generation_prompt=True,
            )
        # Any exception at all can come out of a foreign program, and none of them is our state's.
        except Exception as error:
            raise InvalidField("chat", f"the model's chat template refuses it: {error}") from error


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
