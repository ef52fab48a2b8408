"""Constraints in the notation of llguidance: a variant of Lark with JSON schemas in it."""

import json
import re
from typing import Any

from llguidance.gbnf_to_lark import gbnf_to_lark

from outrider.errors import InvalidField
from outrider.sampling import Constraint, ConstraintKind

# The law must be a function of the text alone, so every way to cut it into tokens is legal. It
# stands at the end: what comes before keeps its line numbers in error messages.
OPTIONS = '\n%llguidance {"no_forcing": true}\n'
SPACE = r"[ \n\r\t]"
MAX_SPACE = 40
"""Of white space in one place of JSON: small models that begin with it may never end it."""
SCHEMA_OPTIONS = ("whitespace_flexible", "coerce_one_of", "lenient")
"""What a schema may say to the library under "x-guidance"; the others would allow what is no JSON
or lift our limits."""
NOT_TEXT = re.compile(
    r"""
    //[^\n]* | \#[^\n]*                 # comments
    | "(?:\\.|[^"\\\n])*"i?             # strings
    | /(?:\\.|[^/\\\n])+/[a-z]*         # regular expressions
    """,
    re.VERBOSE,
)
SPECIAL_TOKEN = re.compile(r"<[^<>\s]+>")
OPTION = re.compile(r"\[[^\]]*\b(stop|max_tokens|temperature)\b[^\]]*\]\s*:")


def write(constraint: Constraint) -> str:
    """Return the constraint as a grammar of the library.

    Raises: InvalidField for what the library would not refuse, or not clearly.
    """
    match constraint.kind:
        case ConstraintKind.JSON_SCHEMA:
            return _json(_schema(constraint.text), constraint.after)
        case ConstraintKind.JSON_OBJECT:
            return _json({"type": "object"}, constraint.after)
        case ConstraintKind.REGEX:
            return _grammar(f"start: /{_regex(constraint.text)}/")
        case ConstraintKind.CHOICE:
            # A terminal, so that the lexer tells a thousand choices apart, and not the parser.
            texts = " | ".join(json.dumps(choice) for choice in constraint.choices)
            return _grammar(f"start: CHOICE\nCHOICE: {texts}")
        case ConstraintKind.GRAMMAR:
            return _grammar(_lark(constraint.text))


def reason(error: str, kind: ConstraintKind) -> str:
    """Return what an error of the library says to whom wrote the constraint."""
    text = re.split(r"\n\s*\d+ \||\n<", error)[0].strip()  # without excerpt and state
    if kind is ConstraintKind.REGEX:
        found = re.search(r"^error: (.+)", text, re.MULTILINE)
        text = found[1] if found else text
    if kind is not ConstraintKind.GRAMMAR:
        text = re.sub(r"^(at )?\d+\(\d+\): |failed to compile JSON schema: ", "", text)
    return " ".join(text.split())[:300] or "is not usable"


def _grammar(lark: str) -> str:
    return json.dumps({"grammars": [{"lark_grammar": lark + OPTIONS}]})


def _json(schema: dict[str, Any], after: str) -> str:
    options = schema.get("x-guidance", {})
    if options.get("whitespace_flexible", True):  # the pattern would override a false
        options = {**options, "whitespace_pattern": f"{SPACE}{{1,{MAX_SPACE}}}"}
    schema = {**schema, "x-guidance": options}
    # Behind a marker most models set a space or a new line, which no reader of JSON minds.
    start = f"start: SPACE? @json\nSPACE: /{SPACE}{{1,{MAX_SPACE}}}/" if after else "start: @json"
    grammars = [{"lark_grammar": start + OPTIONS}, {"name": "json", "json_schema": schema}]
    return json.dumps({"grammars": grammars})


def _schema(text: str) -> dict[str, Any]:
    field = "sampling_params.json_schema"
    try:
        schema = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidField(field, f"is no JSON: {error}") from error
    if schema is True:
        schema = {}
    if not isinstance(schema, dict):
        limit = "nothing satisfies it" if schema is False else "a schema is an object or true"
        raise InvalidField(field, f"{text[:40]}: {limit}")
    options = schema.get("x-guidance", {})
    if not isinstance(options, dict):
        raise InvalidField(f"{field}.x-guidance", "must be an object")
    for name, value in options.items():
        if name not in SCHEMA_OPTIONS or not isinstance(value, bool):
            known = ", ".join(SCHEMA_OPTIONS)
            raise InvalidField(f"{field}.x-guidance", f"{name}: only {known} can be true or false")
    return schema


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no number of JSON")


def _regex(text: str) -> str:
    r"""Return a regular expression as it stands between slashes.

    It matches the whole text, so that ``^`` before it and ``$`` behind it say nothing new.
    """
    text = text.removeprefix("^")
    backslashes = len(text) - 1 - len(text[:-1].rstrip("\\"))
    if text.endswith("$") and backslashes % 2 == 0:
        text = text[:-1]
    escaped = re.sub(r"\\.|/|\n", lambda found: _between_slashes(found[0]), text, flags=re.DOTALL)
    return escaped or "(?:)"


def _between_slashes(part: str) -> str:
    return {"/": r"\/", "\n": r"\n", "\\\n": r"\n"}.get(part, part)


def _lark(text: str) -> str:
    """Return a grammar in Lark's notation; one in llama.cpp's GBNF is translated.

    Raises: InvalidField for what would not hold under speculation, or in the text.
    """
    field = "sampling_params.grammar"
    if "::=" in NOT_TEXT.sub("", text):
        try:
            text = gbnf_to_lark(text)
        except Exception as error:  # the translator raises plain ones, and those of its slips
            raise InvalidField(field, f"is no GBNF: {error}") from error
    bare = NOT_TEXT.sub('""', text)
    if found := SPECIAL_TOKEN.search(bare):
        limit = "special tokens are no part of a constrained text"
        raise InvalidField(field, f"{found[0]}: {limit}")
    if found := OPTION.search(bare):
        raise InvalidField(field, f"{found[1]}: this option of a rule is not supported")
    return text
