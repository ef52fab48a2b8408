"""What surrounds every RPC: request id, log context, and one place that turns errors into codes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, aclosing, asynccontextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable
from typing import Any, NoReturn, Self

import grpc
import structlog
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import DecodeError
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

from outrider.errors import InvalidField, OutriderError
from outrider.serving.gate import Gate
from outrider.serving.request_id import new_request_id, sent_request_id

# Health and reflection answer in every state of the service, and outlive its last RPC.
UNGUARDED = ("/grpc.health.", "/grpc.reflection.")

Behavior = Callable[..., Any]
Stay = Callable[[], AbstractContextManager[None]]

log = structlog.get_logger()


class RpcInterceptor(grpc.aio.ServerInterceptor):
    """Guards every RPC of the service's own.

    A handler raises what it means: an OutriderError becomes its code and message (with RetryInfo
    where it says when to retry), anything else INTERNAL without details. Either is logged once, as
    ``rpc_failed``. Cancellation passes through untouched.
    """

    def __init__(self, gate: Gate) -> None:
        self._gate = gate

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler | None:
        handler = await continuation(handler_call_details)
        rpc = handler_call_details.method
        guarded = not rpc.startswith(UNGUARDED)
        if handler is None:
            return self._refusal(rpc) if guarded and not self._gate.passes(rpc) else None
        behavior = (
            handler.unary_unary
            or handler.unary_stream
            or handler.stream_unary
            or handler.stream_stream
        )
        behavior = _reading_stream(behavior) if handler.request_streaming else _reading(behavior)
        stay = partial(self._gate.passage, rpc) if guarded else nullcontext
        guard = _guard_stream if handler.response_streaming else _guard_unary
        kind = {
            (False, False): grpc.unary_unary_rpc_method_handler,
            (False, True): grpc.unary_stream_rpc_method_handler,
            (True, False): grpc.stream_unary_rpc_method_handler,
            (True, True): grpc.stream_stream_rpc_method_handler,
        }[handler.request_streaming, handler.response_streaming]
        return kind(
            guard(behavior, rpc, stay),
            _lenient(handler.request_deserializer),
            handler.response_serializer,
        )

    def _refusal(self, rpc: str) -> grpc.RpcMethodHandler:
        """Answers a method that is not there yet: that is UNAVAILABLE, not UNIMPLEMENTED."""

        async def refuse(_: object, context: grpc.aio.ServicerContext) -> None:
            async with _rpc_context(rpc, context):
                raise self._gate.refusal()

        # Without deserializers this kind answers unary and streaming callers alike.
        return grpc.stream_stream_rpc_method_handler(refuse)


def _guard_unary(behavior: Behavior, rpc: str, stay: Stay) -> Behavior:
    async def guarded(request: object, context: grpc.aio.ServicerContext) -> object:
        async with _rpc_context(rpc, context):
            with stay():
                return await behavior(request, context)

    return guarded


def _guard_stream(behavior: Behavior, rpc: str, stay: Stay) -> Behavior:
    async def guarded(request: object, context: grpc.aio.ServicerContext) -> None:
        async with _rpc_context(rpc, context):
            with stay():
                answer = behavior(request, context)
                if isawaitable(answer):  # it writes by itself
                    await answer
                    return
                # Writing here instead of yielding lets a cancel arrive inside this block, so
                # that the handler's `finally` runs now and not at the next garbage collection.
                async with aclosing(answer) as responses:
                    async for response in responses:
                        await context.write(response)

    return guarded


@dataclass(frozen=True, slots=True)
class _Malformed:
    """Stands for a request that could not be read, until an RPC is there to refuse it."""

    name: str

    def refuse(self) -> NoReturn:
        raise InvalidField("request", f"the bytes are no valid {self.name}")


def _lenient(deserialize: Callable[[bytes], object] | None) -> Callable[[bytes], object] | None:
    """Read requests as before, but put off the refusal: gRPC's own would be UNKNOWN."""
    if deserialize is None:
        return None

    def read(data: bytes) -> object:
        try:
            return deserialize(data)
        except DecodeError:
            message = getattr(deserialize, "__self__", None)  # FromString of a message's class
            return _Malformed(getattr(message, "__name__", "message"))

    return read


def _reading(behavior: Behavior) -> Behavior:
    def read(request: object, context: grpc.aio.ServicerContext) -> Any:
        if isinstance(request, _Malformed):
            request.refuse()
        return behavior(request, context)

    return read


def _reading_stream(behavior: Behavior) -> Behavior:
    def read(requests: AsyncIterator[object], context: grpc.aio.ServicerContext) -> Any:
        return behavior(_Requests(requests), context)

    return read


class _Requests:
    """The requests of a stream; raises InvalidField at one that could not be read."""

    def __init__(self, requests: AsyncIterator[object]) -> None:
        self._requests = requests

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> object:
        request = await anext(self._requests)
        if isinstance(request, _Malformed):
            request.refuse()
        return request


@asynccontextmanager
async def _rpc_context(rpc: str, context: grpc.aio.ServicerContext) -> AsyncIterator[None]:
    """Bind the log context of one RPC, and end the RPC with a status code if it fails."""
    with structlog.contextvars.bound_contextvars(rpc=rpc, request_id=new_request_id()):
        try:
            if request_id := sent_request_id(context.invocation_metadata() or ()):
                structlog.contextvars.bind_contextvars(request_id=request_id)
            yield
        except grpc.aio.AbortError:
            raise  # the handler has set a status itself
        except Exception as error:
            await _abort(context, error)


async def _abort(context: grpc.aio.ServicerContext, error: Exception) -> None:
    if expected := _expected(error):
        log.warning("rpc_failed", code=expected.code.name, detail=str(expected))
        try:
            await context.abort(expected.code, str(expected), trailing_metadata=_details(expected))
        except grpc.aio.AbortError:
            raise
        except grpc.aio.BaseError:
            # No status can follow a first message whose write was cut: the call ends with the port.
            raise asyncio.CancelledError from None
    log.error("rpc_failed", code="INTERNAL", exc_info=error)
    request_id = structlog.contextvars.get_contextvars()["request_id"]
    await context.abort(
        grpc.StatusCode.INTERNAL,
        f"internal error; the service's log says more under request id {request_id}",
    )


def _expected(error: Exception) -> OutriderError | None:
    """The error that a handler meant, also when it left a TaskGroup; None if there is a bug."""
    while isinstance(error, ExceptionGroup):
        _, unexpected = error.split(OutriderError)
        if unexpected is not None:
            return None
        error = error.exceptions[0]
    return error if isinstance(error, OutriderError) else None


def _details(error: OutriderError) -> tuple[tuple[str, bytes], ...]:
    """Trailing metadata that carries google.rpc.RetryInfo where the error says when to retry."""
    retry_after_s = getattr(error, "retry_after_s", None)
    if retry_after_s is None:
        return ()
    delay = Duration()
    delay.FromNanoseconds(round(retry_after_s * 1e9))
    detail = AnyMessage()
    detail.Pack(RetryInfo(retry_delay=delay))
    status = Status(code=error.code.value[0], message=str(error), details=[detail])
    return tuple(rpc_status.to_status(status).trailing_metadata)
