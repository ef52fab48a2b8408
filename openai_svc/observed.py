"""What surrounds every HTTP request: its id, one log line, and a count."""

import time

import structlog
from prometheus_client import CollectorRegistry, Counter
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from openai_svc.errors import ApiError
from outrider.serving.request_id import (
    MAX_REQUEST_ID_CHARACTERS,
    REQUEST_ID_KEY,
    new_request_id,
)

# Asked again and again by machines; a line for each would bury the others.
UNLOGGED = ("/health",)
CLIENT_LEFT = 499
"""The status of the log line where a client left before its answer, after nginx."""

log = structlog.get_logger()


class Observed:
    """Gives every request an id, the caller's where it sent a usable one, and tells its end."""

    def __init__(self, app: ASGIApp, registry: CollectorRegistry) -> None:
        self._app = app
        self._requests = Counter(
            "http_requests",
            "HTTP requests that ended.",
            ("route", "status"),
            namespace="outrider",
            registry=registry,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began, status, is_whole = time.monotonic(), 0, False
        sent = Headers(scope=scope).get(REQUEST_ID_KEY, "")
        request_id = sent if _is_usable(sent) else new_request_id()
        scope.setdefault("state", {})[REQUEST_ID_KEY] = request_id

        async def observe(message: Message) -> None:
            nonlocal status, is_whole
            if message["type"] == "http.response.start":
                status = message["status"]
                MutableHeaders(scope=message)[REQUEST_ID_KEY] = request_id
            await send(message)
            is_whole = message["type"] == "http.response.body" and not message.get("more_body")

        with structlog.contextvars.bound_contextvars(request_id=request_id):
            try:
                await self._app(scope, receive, observe)
            finally:
                told = status if is_whole else CLIENT_LEFT
                self._tell(scope, told, time.monotonic() - began)

    def _tell(self, scope: Scope, status: int, seconds: float) -> None:
        route = scope.get("route")
        path = getattr(route, "path", "other")
        self._requests.labels(path, status).inc()
        if path not in UNLOGGED:
            log.info(
                "request_finished",
                method=scope["method"],
                route=path,
                status=status,
                total_ms=round(seconds * 1e3, 1),
            )


def request_id_of(scope: Scope) -> str:
    """Return the id of an observed request.

    Raises: ApiError if the caller sent one that cannot travel on as metadata of gRPC.
    """
    request_id = str(scope["state"][REQUEST_ID_KEY])
    if Headers(scope=scope).get(REQUEST_ID_KEY, request_id) != request_id:
        limit = f"must have 1 to {MAX_REQUEST_ID_CHARACTERS} printable ASCII characters"
        raise ApiError(400, f"{REQUEST_ID_KEY}: {limit}", param=REQUEST_ID_KEY)
    return request_id


def _is_usable(request_id: str) -> bool:
    fits = 0 < len(request_id) <= MAX_REQUEST_ID_CHARACTERS
    return fits and is_printable_ascii(request_id)


def is_printable_ascii(text: str) -> bool:
    """Whether a text can be a value of gRPC's metadata."""
    return text.isascii() and text.isprintable()
