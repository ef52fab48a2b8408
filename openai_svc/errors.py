"""Errors in OpenAI's form, and where they come from before any call is made."""

import re
from collections.abc import Callable

from pydantic import ValidationError

from outrider.errors import InvalidField

# What clients expect to read beside a status; those without a type of their own are the server's.
TYPES = {429: "rate_limit_error", **dict.fromkeys(range(400, 429), "invalid_request_error")}


class ApiError(Exception):
    """A failed request: the HTTP status and what its body says."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        retry_after_s: float | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.retry_after_s = retry_after_s

    @property
    def body(self) -> dict[str, object]:
        """The JSON object that clients read."""
        type_ = TYPES.get(self.status, "server_error")
        error = {"message": str(self), "type": type_, "param": self.param, "code": self.code}
        return {"error": error}


def from_validation(error: ValidationError) -> ApiError:
    """Name the first parameter that is wrong."""
    first = error.errors(include_url=False)[0]
    if first["type"] == "json_invalid":
        return ApiError(400, f"the body is no JSON: {first['msg']}", code="invalid_json")
    param, what = _path(first["loc"]), first["msg"].removeprefix("Value error, ")
    match first["type"]:
        case "extra_forbidden":
            code, what = "unknown_parameter", "unknown parameter"
        case "missing":
            code, what = "missing_required_parameter", "required"
        case "value_error" if named := re.match(r"([a-z_]+): ", what):
            # A check across parameters names one itself.
            param = f"{param}.{named[1]}" if param else named[1]
            code, what = "invalid_value", what[named.end() :]
        case _:
            code = "invalid_value"
    return ApiError(400, f"{param or 'body'}: {what}", param=param, code=code)


def from_field(error: InvalidField, param_of: Callable[[str], str]) -> ApiError:
    """Say what was wrong with a field under the name that the caller gave it."""
    return from_details(str(error), param_of)


def from_details(details: str, param_of: Callable[[str], str]) -> ApiError:
    """Read an error text that begins with a field's name, as the orchestrator writes it."""
    field, colon, rest = details.partition(": ")
    if not colon or " " in field:
        return ApiError(400, details, code="invalid_value")
    param = param_of(field)
    return ApiError(400, f"{param}: {rest}", param=param, code="invalid_value")


def _path(location: tuple[int | str, ...]) -> str | None:
    """Write a place in a body as JavaScript would: messages[0].content."""
    path = ""
    for part in location:
        if part != "[key]":  # what pydantic adds where a key is wrong
            path += f"[{part}]" if isinstance(part, int) else f".{part}"
    return path.removeprefix(".") or None
