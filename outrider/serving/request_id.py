"""The name that a request keeps on its way through all services."""

import uuid
from collections.abc import Iterable

import structlog

from outrider.errors import InvalidField

REQUEST_ID_KEY = "x-request-id"
MAX_REQUEST_ID_CHARACTERS = 128


def new_request_id() -> str:
    """A request id that no other request has."""
    return uuid.uuid4().hex


def current_request_id() -> str:
    """The id of the RPC that is being handled; a new one outside of any."""
    return str(structlog.contextvars.get_contextvars().get("request_id") or new_request_id())


def sent_request_id(metadata: Iterable[tuple[str, str | bytes]]) -> str | None:
    """The id that a caller sent, if any.

    Raises: InvalidField if it is too long to be carried in every log line.
    """
    for key, value in metadata:
        if key == REQUEST_ID_KEY:
            if len(value) > MAX_REQUEST_ID_CHARACTERS:
                raise InvalidField(
                    f"metadata {REQUEST_ID_KEY}",
                    f"{len(value)} characters, at most {MAX_REQUEST_ID_CHARACTERS}",
                )
            return str(value) or None
    return None


def request_id_metadata(request_id: str) -> tuple[tuple[str, str], ...]:
    """Metadata that carries the id to the next service."""
    return ((REQUEST_ID_KEY, request_id),)
