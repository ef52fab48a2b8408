"""A peer between two services that passes messages on as bytes, and may change what passes."""

from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

import grpc

from outrider.serving.channel import open_channel
from outrider.serving.process import OpenService
from outrider.serving.server import Register

Change = Callable[[bytes], Iterable[bytes]]
"""What is passed on instead of a message."""


def unchanged(message: bytes) -> Iterable[bytes]:
    """Pass the message on."""
    return (message,)


def relay(
    address: str, rpc: str, *, requests: Change = unchanged, responses: Change = unchanged
) -> OpenService:
    """Return the opener of a service that relays to ``address``.

    Both changes apply to the calls of one rpc, such as "Verify".
    """

    @asynccontextmanager
    async def opened() -> AsyncIterator[Register]:
        channel = open_channel(address)
        handler = _Relay(channel, rpc, requests, responses)
        yield lambda server: server.add_generic_rpc_handlers((handler,))
        await channel.close()

    return opened


class _Relay(grpc.GenericRpcHandler):
    """Answers every method; on the wire a unary call is a stream of one message."""

    def __init__(
        self, channel: grpc.aio.Channel, rpc: str, requests: Change, responses: Change
    ) -> None:
        self._channel = channel
        self._rpc = rpc
        self._requests = requests
        self._responses = responses

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler:
        method = details.method
        concerned = method.endswith(f"/{self._rpc}")

        async def forward(
            given: AsyncIterator[bytes], context: grpc.aio.ServicerContext
        ) -> AsyncIterator[bytes]:
            async def sent() -> AsyncIterator[bytes]:
                async for message in given:
                    for passed in self._requests(message) if concerned else (message,):
                        yield passed

            call = self._channel.stream_stream(method)(sent())
            try:
                async for message in call:
                    for passed in self._responses(message) if concerned else (message,):
                        yield passed
            finally:
                call.cancel()

        return grpc.stream_stream_rpc_method_handler(forward)
