"""A verifier that dies politely: it takes steps and answers only the first few."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass

import grpc

from outrider.serving.process import OpenService
from outrider.serving.server import Register
from outrider.v1 import verifier_pb2


@dataclass
class Counted:
    """How often the verifier was asked."""

    num_streams: int = 0


def hanging_after(num_steps: int, open_service: OpenService, counted: Counted) -> OpenService:
    """The service, whose Verify streams fall silent after this many verdicts."""

    @asynccontextmanager
    async def opened() -> AsyncIterator[Register]:
        async with open_service() as register:

            def register_hanging(server: grpc.aio.Server) -> None:
                register(_Hanging(server, num_steps, counted))

            yield register_hanging

    def open_hanging() -> AbstractAsyncContextManager[Register]:
        return opened()

    return open_hanging


class _Hanging:
    """Passes handlers on to the server, Verify's with a limit."""

    def __init__(self, server: grpc.aio.Server, num_steps: int, counted: Counted) -> None:
        self._server = server
        self._num_steps = num_steps
        self._counted = counted

    def add_generic_rpc_handlers(self, handlers: tuple[grpc.GenericRpcHandler, ...]) -> None:
        self._server.add_generic_rpc_handlers(tuple(map(self._limited, handlers)))

    def add_registered_method_handlers(self, service_name: str, handlers: object) -> None:
        """Not after the start."""

    def _limited(self, handler: grpc.GenericRpcHandler) -> grpc.GenericRpcHandler:
        if handler.service_name() != "outrider.v1.VerifierService":
            return handler
        details = _Details("/outrider.v1.VerifierService/Verify")
        verify = handler.service(details).stream_stream

        async def silent_after(requests: object, context: grpc.aio.ServicerContext) -> None:
            self._counted.num_streams += 1
            answered = -1  # the opening's answer is none to a step
            async for response in verify(requests, context):
                if answered == self._num_steps:
                    await asyncio.Event().wait()
                await context.write(response)
                answered += 1

        return grpc.method_handlers_generic_handler(
            "outrider.v1.VerifierService",
            {
                "Verify": grpc.stream_stream_rpc_method_handler(
                    silent_after,
                    request_deserializer=verifier_pb2.VerifyRequest.FromString,
                    response_serializer=verifier_pb2.VerifyResponse.SerializeToString,
                )
            },
        )


@dataclass
class _Details:
    method: str
    invocation_metadata: tuple[()] = ()
