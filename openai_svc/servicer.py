"""The HTTP face: bodies in, JSON or events out."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any, TypeVar

import grpc
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from openai_svc.calls import from_rpc
from openai_svc.chat import ChatBody
from openai_svc.completions import CompletionBody
from openai_svc.errors import ApiError, from_validation
from openai_svc.exchange import ASK_S, Body, open_exchange
from openai_svc.observed import CLIENT_LEFT, is_printable_ascii, request_id_of
from openai_svc.reply import Delta, Reply
from openai_svc.vocabulary import Vocabularies
from outrider.client import Client
from outrider.serving.options import MAX_MESSAGE_BYTES
from outrider.v1 import generation_pb2 as pb

DONE = "data: [DONE]\n\n"
SERVING = health_pb2.HealthCheckResponse.SERVING

T = TypeVar("T")

log = structlog.get_logger()


class ClientLeft(Exception):
    """Nobody waits for the answer any more."""


@dataclass(slots=True)
class FrontDoor:
    """Answers OpenAI's clients; holds a channel to the orchestrator, and nothing of any request."""

    client: Client
    timeout_s: float
    forwarded: Sequence[str] = ()
    """Headers that go on as metadata of the calls."""
    _vocabularies: Vocabularies = field(default_factory=Vocabularies)

    @property
    def app(self) -> Starlette:
        """The application with all routes."""
        return Starlette(
            routes=[
                Route("/v1/chat/completions", self.chat, methods=["POST"]),
                Route("/v1/completions", self.complete, methods=["POST"]),
                Route("/v1/models", self.models),
                Route("/v1/models/{model:path}", self.model),
                Route("/health", self.health),
            ],
            exception_handlers={
                ApiError: _on_api_error,
                HTTPException: _on_http_error,
                ClientLeft: _on_client_left,
                Exception: _on_bug,
            },
        )

    async def chat(self, request: Request) -> Response:
        """Answer a conversation."""
        return await self._answer(request, ChatBody)

    async def complete(self, request: Request) -> Response:
        """Continue texts or token ids."""
        return await self._answer(request, CompletionBody)

    async def models(self, request: Request) -> Response:
        """List the targets that are there."""
        return JSONResponse({"object": "list", "data": await self._models()})

    async def model(self, request: Request) -> Response:
        """Describe one of them."""
        name = request.path_params["model"]
        for model in await self._models():
            if model["id"] == name:
                return JSONResponse(model)
        message = f"model: {name} is not served"
        raise ApiError(404, message, param="model", code="model_not_found")

    async def health(self, request: Request) -> Response:
        """Say whether the orchestrator serves."""
        stub = health_pb2_grpc.HealthStub(self.client.channel)
        try:
            answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=ASK_S)
        except grpc.aio.AioRpcError as error:
            state = f"{error.code().name}: {error.details()}"
        else:
            if answer.status == SERVING:
                return JSONResponse({"status": "ready"})
            state = "NOT_SERVING"
        return JSONResponse({"status": "unavailable", "orchestrator": state}, 503)

    async def _answer(self, request: Request, kind: type[Body]) -> Response:
        body = await _read(request, kind)
        exchange = await open_exchange(
            self.client,
            self._vocabularies,
            body,
            request_id=request_id_of(request.scope),
            metadata=_forwarded(request, self.forwarded),
            timeout_s=self.timeout_s,
        )
        if not body.stream:
            return JSONResponse(await _unless_left(request, exchange.whole()))
        deltas = exchange.deltas()
        try:
            # An error before the first token still has a status to be told by.
            first = await _unless_left(request, _next(deltas))
        except BaseException:
            await deltas.aclose()
            raise
        return EventStream(
            deltas,
            _events(first, deltas, exchange.reply, includes_usage=body.includes_usage),
            media_type="text/event-stream",
            headers={"cache-control": "no-cache", "x-accel-buffering": "no"},
        )

    async def _models(self) -> list[dict[str, object]]:
        question = pb.GetServerInfoRequest()
        try:
            info = await self.client.stub.GetServerInfo(question, timeout=ASK_S)
        except grpc.aio.AioRpcError as error:
            raise from_rpc(error) from error
        lengths = {
            worker.identity.name: worker.identity.max_context_length
            for worker in info.workers
            if worker.role == "verifier" and worker.state in ("ready", "suspect")
        }
        about = {"object": "model", "created": int(info.started_at_s), "owned_by": "outrider"}
        return [
            {"id": name, **about, "max_model_len": length}
            for name, length in sorted(lengths.items())
        ]


class EventStream(StreamingResponse):
    """A stream whose source is closed when the client leaves, not at a garbage collection.

    Also when it leaves before the first event: a generator that has not begun does not close what
    it was given.
    """

    body_iterator: AsyncGenerator[str, None]

    def __init__(
        self, source: AsyncGenerator[Delta, None], events: AsyncIterator[str], **options: Any
    ) -> None:
        super().__init__(events, **options)
        self._source = source

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            await self._source.aclose()

    async def stream_response(self, send: Send) -> None:
        async with aclosing(self.body_iterator):
            await super().stream_response(send)


async def _events(
    first: Delta, deltas: AsyncGenerator[Delta, None], reply: Reply, *, includes_usage: bool
) -> AsyncIterator[str]:
    """Yield server-sent events; the last is [DONE], or an error after which nothing comes."""
    try:
        for event in reply.events(first):
            yield _event(event)
        async with aclosing(deltas):
            async for delta in deltas:
                for event in reply.events(delta):
                    yield _event(event)
        if includes_usage:
            yield _event(reply.usage_event())
        yield DONE
    except ApiError as error:
        log.warning("stream_failed", status=error.status, detail=str(error))
        yield _event(error.body)
    except Exception as error:
        log.exception("stream_failed", status=500, detail=str(error))
        yield _event(_internal().body)
    finally:
        await deltas.aclose()


def _event(data: dict[str, object]) -> str:
    return f"data: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n"


async def _next(deltas: AsyncGenerator[Delta, None]) -> Delta:
    return await anext(deltas)


async def _unless_left(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Do the work while the client is there; Raises: ClientLeft if it goes, the work cancelled."""

    async def leave() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, leaving = asyncio.create_task(work), asyncio.create_task(leave())
    try:
        await asyncio.wait((working, leaving), return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ClientLeft
        return working.result()
    finally:
        for task in (working, leaving):
            task.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


def _forwarded(request: Request, names: Sequence[str]) -> dict[str, str]:
    """Return those headers that came; Raises: ApiError for one that gRPC cannot take."""
    found = {name: request.headers[name] for name in names if name in request.headers}
    for name, value in found.items():
        if not is_printable_ascii(value):
            raise ApiError(400, f"{name}: must be printable ASCII characters", param=name)
    return found


async def _read(request: Request, kind: type[Body]) -> Body:
    """Read a body; Raises: ApiError for one that is too long or no request."""
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > MAX_MESSAGE_BYTES:
            raise ApiError(413, f"the body is longer than {MAX_MESSAGE_BYTES} bytes")
    try:
        return kind.model_validate_json(bytes(data))
    except ValidationError as error:
        raise from_validation(error) from None


async def _on_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    headers = {}
    if error.retry_after_s is not None:
        headers["retry-after"] = str(max(round(error.retry_after_s), 1))  # whole seconds
    return JSONResponse(error.body, error.status, headers)


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{error.detail}: {request.method} {request.url.path}"
    return JSONResponse(ApiError(error.status_code, message).body, error.status_code, error.headers)


async def _on_client_left(request: Request, error: Exception) -> Response:
    return Response(status_code=CLIENT_LEFT)  # which nobody reads


async def _on_bug(request: Request, error: Exception) -> Response:
    internal = _internal()
    return JSONResponse(internal.body, internal.status)


def _internal() -> ApiError:
    return ApiError(500, "internal error; the service's log says more under this request's id")
