"""What the flags of ``outrider generate`` say about the form of the output."""

from collections.abc import Sequence
from pathlib import Path

from outrider.errors import InvalidField
from outrider.sampling import Constraint, ConstraintKind


def read_constraint(
    *,
    json_schema: Path | None,
    json_object: bool,
    regex: str,
    grammar: Path | None,
    choices: Sequence[str],
    after: str,
) -> Constraint | None:
    """Return the constraint that one of the flags gives, None without any.

    Raises: InvalidField for more than one, and for ``after`` without.
    """
    found: list[tuple[str, Constraint]] = []
    if json_schema is not None:
        text = _text("--json-schema", json_schema)
        found.append(("--json-schema", Constraint(ConstraintKind.JSON_SCHEMA, text, after=after)))
    if json_object:
        found.append(("--json-object", Constraint(ConstraintKind.JSON_OBJECT, after=after)))
    if regex:
        found.append(("--regex", Constraint(ConstraintKind.REGEX, regex, after=after)))
    if grammar is not None:
        text = _text("--grammar", grammar)
        found.append(("--grammar", Constraint(ConstraintKind.GRAMMAR, text, after=after)))
    if choices:
        several = Constraint(ConstraintKind.CHOICE, choices=tuple(choices), after=after)
        found.append(("--choice", several))
    if len(found) > 1:
        raise InvalidField(found[1][0], f"not together with {found[0][0]}")
    if after and not found:
        raise InvalidField("--after", "there is no constraint that could begin there")
    return found[0][1] if found else None


def _text(flag: str, path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except ValueError as error:
        raise InvalidField(flag, f"{path} is no text: {error}") from None
