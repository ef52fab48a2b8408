"""Reads a policy file; every fault is told with its line, its place and its limit."""

import difflib
import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

from pydantic import ValidationError
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, SequenceNode

from outrider.errors import PolicyError
from outrider.policy import schema

MAX_FILE_BYTES = 1 << 20
MAX_SHOWN_CHARACTERS = 60

Place = tuple[int | str, ...]


def read_policy(path: Path) -> schema.Policy:
    """Return the policy of a YAML file.

    Raises: PolicyError with all faults.
    """
    try:
        data = path.read_bytes()
    except OSError as error:
        raise PolicyError(str(path), [error.strerror or str(error)]) from None
    if len(data) > MAX_FILE_BYTES:
        raise PolicyError(str(path), [f"{len(data)} bytes, at most {MAX_FILE_BYTES}"])
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise PolicyError(str(path), [f"byte {error.start} is not UTF-8"]) from None
    return parse_policy(text, name=str(path))


def parse_policy(text: str, *, name: str = "policy") -> schema.Policy:
    """Return the policy of a YAML text; JSON is YAML.

    Raises: PolicyError with all faults; ``name`` says in what.
    """
    yaml = YAML(typ="safe", pure=True)
    try:
        value = yaml.load(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = "" if mark is None else f"line {mark.line + 1}: "
        raise PolicyError(name, [f"{line}{error.problem}"]) from None
    except YAMLError as error:
        raise PolicyError(name, [" ".join(str(error).split())]) from None
    # What its constructors raise for a date that does not exist or a tag that does not fit.
    except (ValueError, KeyError) as error:
        raise PolicyError(name, [f"holds a value that cannot be read: {error}"]) from None
    except RecursionError:
        raise PolicyError(name, ["nests too deeply"]) from None
    if not isinstance(value, dict):
        raise PolicyError(name, ["must be a mapping with version and classes"])
    try:
        return schema.Policy.model_validate(value)
    except ValidationError as error:
        root = yaml.compose(text)
        raise PolicyError(name, [_fault(each, root) for each in error.errors()]) from None


@lru_cache(maxsize=1024)
def read_excerpt(text: str) -> schema.Policy:
    """Return the policy of an excerpt; the same ones come with receipt after receipt.

    Raises: PolicyError if it is none.
    """
    try:
        return schema.Policy.model_validate(json.loads(text))
    except (ValidationError, ValueError) as error:
        raise PolicyError("excerpt", [" ".join(str(error).split())]) from None


def _fault(detail: Any, root: Node | None) -> str:
    place: Place = tuple(part for part in detail["loc"] if part != "[key]")
    message = str(detail["msg"]).removeprefix("Value error, ")
    if detail["type"] == "extra_forbidden":
        message = f"there is no such key{_hint(str(place[-1]))}"
    elif detail["type"] == "missing":
        message = "is required"
    elif not isinstance(detail["input"], dict | list | tuple):
        shown = repr(getattr(detail["input"], "value", detail["input"]))
        message = f"{message}, got {shown[:MAX_SHOWN_CHARACTERS]}"
    if not place:  # a check across classes names them itself
        return message
    return f"line {_line(root, place)}: {_spelt(place)}: {message}"


def _hint(key: str) -> str:
    parts = [each for each in vars(schema).values() if isinstance(each, type)]
    known = {name for each in parts if issubclass(each, schema.Part) for name in each.model_fields}
    close = difflib.get_close_matches(key, sorted(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""


def _spelt(place: Place) -> str:
    """Return a place as one writes it: classes[1].when.priority."""
    text = ""
    for part in place:
        text += f"[{part}]" if isinstance(part, int) else f".{part}"
    return text.removeprefix(".")


def _line(node: Node | None, place: Sequence[int | str]) -> int:
    """Return the line of a place, or of the innermost part of it that is there."""
    line = 1
    for part in place:
        if isinstance(node, SequenceNode) and isinstance(part, int) and part < len(node.value):
            node = node.value[part]
            line = node.start_mark.line + 1
        elif isinstance(node, MappingNode):
            entry = next((pair for pair in node.value if pair[0].value == str(part)), None)
            if entry is None:
                break
            line, node = entry[0].start_mark.line + 1, entry[1]
        else:
            break
    return line
