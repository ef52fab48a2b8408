"""What surrounds every RPC: request id, log context, and one place that turns errors into codes."""

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager
from inspect import iscoroutinefunction
from typing import Any

import grpc
import structlog
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.rpc.error_details_pb2 import RetryInfo
from google.rpc.status_pb2 import Status
from grpc_status import rpc_status

from outrider.errors import OutriderError
from outrider.serving.gate import Gate
from outrider.serving.request_id import new_request_id, sent_request_id

# Health and reflection answer whatever state the service is in.
UNGUARDED = ("/grpc.health.", "/grpc.reflection.")

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
        if rpc.startswith(UNGUARDED):
            return handler
        if handler is None:
            return None if self._gate.passes else self._refusal(rpc)
        behavior = (
            handler.unary_unary
            or handler.unary_stream
            or handler.stream_unary
            or handler.stream_stream
        )
        guarded = (
            self._guard_stream(behavior, rpc)
            if handler.response_streaming
            else self._guard_unary(behavior, rpc)
        )
        kind = {
            (False, False): grpc.unary_unary_rpc_method_handler,
            (False, True): grpc.unary_stream_rpc_method_handler,
            (True, False): grpc.stream_unary_rpc_method_handler,
            (True, True): grpc.stream_stream_rpc_method_handler,
        }[handler.request_streaming, handler.response_streaming]
        return kind(guarded, handler.request_deserializer, handler.response_serializer)

    def _refusal(self, rpc: str) -> grpc.RpcMethodHandler:
        """Answers a method that is not there yet: that is UNAVAILABLE, not UNIMPLEMENTED."""

        async def refuse(_: object, context: grpc.aio.ServicerContext) -> None:
            async with _rpc_context(rpc, context):
                raise self._gate.refusal()

        # Without deserializers this kind answers unary and streaming callers alike.
        return grpc.stream_stream_rpc_method_handler(refuse)

    def _guard_unary(self, behavior: Callable[..., Any], rpc: str) -> Callable[..., Any]:
        async def guarded(request: object, context: grpc.aio.ServicerContext) -> object:
            async with _rpc_context(rpc, context):
                with self._gate.passage():
                    return await behavior(request, context)

        return guarded

    def _guard_stream(self, behavior: Callable[..., Any], rpc: str) -> Callable[..., Any]:
        async def guarded(request: object, context: grpc.aio.ServicerContext) -> None:
            async with _rpc_context(rpc, context):
                with self._gate.passage():
                    if iscoroutinefunction(behavior):  # it writes by itself
                        await behavior(request, context)
                        return
                    # Writing here instead of yielding lets a cancel arrive inside this block, so
                    # that the handler's `finally` runs now and not at the next garbage collection.
                    async with aclosing(behavior(request, context)) as responses:
                        async for response in responses:
                            await context.write(response)

        return guarded


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
        await context.abort(expected.code, str(expected), trailing_metadata=_details(expected))
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
