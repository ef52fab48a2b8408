"""What the text must satisfy: OpenAI's ``response_format`` and our ``structured_outputs``."""

import json
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from outrider.sampling import Constraint, ConstraintKind

STRICT = ConfigDict(extra="forbid", strict=True, frozen=True)


def _schema(value: object) -> object:
    if not isinstance(value, dict | str | None):
        raise ValueError("must be a schema, as an object or as its text")
    return value


class JsonSchema(BaseModel):
    """A schema under a name. It always holds, ``strict`` or not."""

    model_config = STRICT

    name: str | None = None
    description: str | None = None
    json_schema: dict[str, Any] = Field(alias="schema")
    strict: bool | None = None


class ResponseFormat(BaseModel):
    """OpenAI's way to ask for JSON."""

    model_config = STRICT

    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None

    @model_validator(mode="after")
    def _has_its_schema(self) -> Self:
        if (self.type == "json_schema") != (self.json_schema is not None):
            raise ValueError('json_schema goes with type "json_schema", and only with it')
        return self

    @property
    def constraint(self) -> Constraint | None:
        """The constraint, None for free text; Raises: InvalidField for one that is too long."""
        if self.type == "json_object":
            return Constraint(ConstraintKind.JSON_OBJECT)
        if self.json_schema is None:
            return None
        return Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(self.json_schema.json_schema))


class StructuredOutputs(BaseModel):
    """Any constraint; exactly one, and with ``after`` it begins behind that string."""

    model_config = STRICT

    # Not "json", which is a method of every model.
    schema_: Annotated[Any, AfterValidator(_schema)] = Field(default=None, alias="json")
    json_object: Literal[True] | None = None
    regex: str | None = None
    grammar: str | None = None
    choice: list[str] | None = None
    after: str = ""

    @model_validator(mode="after")
    def _is_one(self) -> Self:
        kinds = (self.schema_, self.json_object, self.regex, self.grammar, self.choice)
        if sum(kind is not None for kind in kinds) != 1:
            raise ValueError("must have exactly one of json, json_object, regex, grammar, choice")
        return self

    @property
    def constraint(self) -> Constraint:
        """The constraint; Raises: InvalidField for one that is empty or too long."""
        after = self.after
        if self.choice is not None:
            return Constraint(ConstraintKind.CHOICE, choices=tuple(self.choice), after=after)
        if self.json_object:
            return Constraint(ConstraintKind.JSON_OBJECT, after=after)
        if self.regex is not None:
            return Constraint(ConstraintKind.REGEX, self.regex, after=after)
        if self.grammar is not None:
            return Constraint(ConstraintKind.GRAMMAR, self.grammar, after=after)
        schema = self.schema_ if isinstance(self.schema_, str) else json.dumps(self.schema_)
        return Constraint(ConstraintKind.JSON_SCHEMA, schema, after=after)


# Where a fault of a constraint is to be looked for, by the field that the orchestrator names.
STRUCTURED_FIELDS = {
    "json_schema": "structured_outputs.json",
    "json_object": "structured_outputs.json_object",
    "regex": "structured_outputs.regex",
    "grammar": "structured_outputs.grammar",
    "choice": "structured_outputs.choice",
    "choice.choices": "structured_outputs.choice",
    "constraint": "structured_outputs",
    "constraint_after": "structured_outputs.after",
}
