"""One gRPC server from its first open port to its last RPC."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_health.v1.health import aio as health
from grpc_reflection.v1alpha import reflection

from outrider.serving.gate import Gate
from outrider.serving.interceptor import RpcInterceptor
from outrider.serving.options import server_options

Register = Callable[[grpc.aio.Server], None]
"""Adds a service's servicers to the server, with the generated ``add_..._to_server``."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """A service that is there but still waits for its peers.

    Until ``until_ready`` returns it answers the ``early`` RPCs (/package.Service/Method); others
    get UNAVAILABLE with what ``obstacle`` says then.
    """

    register: Register
    early: frozenset[str]
    obstacle: Callable[[], str]
    until_ready: Callable[[], Awaitable[None]]


HEALTH_NAME = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING

# What handlers may take to release what they hold once they are cancelled.
RELEASE_S = 5.0

# What clients of RPCs that were cut may take to hear of it.
FAREWELL_S = 0.5


class _LateRegistration:
    """Takes servicers after the start: by generic handlers, which the server allows then."""

    def __init__(self, server: grpc.aio.Server) -> None:
        self._server = server

    def add_generic_rpc_handlers(self, handlers: Sequence[grpc.GenericRpcHandler]) -> None:
        self._server.add_generic_rpc_handlers(handlers)

    def add_registered_method_handlers(self, service_name: str, handlers: object) -> None:
        """Only an optimisation of what the generic handlers do; impossible after the start."""


class ServiceServer:
    """Answers health from the start, RPCs between ``ready`` and ``drain``.

    LOADING, health NOT_SERVING: RPCs get UNAVAILABLE. SERVING. DRAINING, health NOT_SERVING: new
    RPCs get UNAVAILABLE, running ones go on until the grace period ends.
    """

    def __init__(
        self, service_names: Sequence[str], *, host: str = "127.0.0.1", port: int = 0
    ) -> None:
        self._service_names = tuple(service_names)
        self._host = f"[{host}]" if ":" in host and not host.startswith("[") else host
        self._port = port
        self._gate = Gate()
        self._stopped = False
        self._health = health.HealthServicer()
        self._server = grpc.aio.server(
            interceptors=[RpcInterceptor(self._gate)], options=server_options()
        )

    @property
    def num_running(self) -> int:
        """RPCs that run now, health and reflection not counted."""
        return self._gate.num_running

    async def open(self) -> str:
        """Open the port and return host:port.

        Raises: OSError if the port is taken or the host is not this machine's.
        """
        # The servicer is born SERVING; nobody may see that before the model is loaded.
        for name in ("", *self._service_names):
            await self._health.set(name, NOT_SERVING)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self._server)
        reflection.enable_server_reflection(
            (*self._service_names, HEALTH_NAME, reflection.SERVICE_NAME), self._server
        )
        address = f"{self._host}:{self._port}"
        try:
            port = self._server.add_insecure_port(address)
        except RuntimeError as error:
            await self._server.stop(None)
            detail = "the port is taken, or the host is not an address of this machine"
            raise OSError(f"cannot listen on {address}: {detail}") from error
        await self._server.start()
        return f"{self._host}:{port}"

    async def ready(self, service: Register | Waiting) -> None:
        """Add the servicers and turn health to SERVING, once the service is ready for that."""
        late = _LateRegistration(self._server)
        if isinstance(service, Waiting):
            self._gate.wait(service.early, service.obstacle)
            service.register(late)
            await service.until_ready()
        else:
            service(late)
        self._gate.open()
        for name in ("", *self._service_names):
            await self._health.set(name, SERVING)

    async def drain(self, *, grace_s: float, hurry: asyncio.Event | None = None) -> None:
        """Refuse new RPCs, let running ones finish within the grace period, then stop.

        Setting ``hurry`` ends the grace period at once. RPCs that are still there are cut:
        their handlers see CancelledError, their clients UNAVAILABLE. A server that has stopped
        stays as it is.
        """
        if self._stopped:
            return
        await self._health.enter_graceful_shutdown()
        self._gate.close()
        waits: set[asyncio.Task[object]] = {asyncio.create_task(self._gate.drained())}
        if hurry is not None:
            waits.add(asyncio.create_task(hurry.wait()))
        try:
            await asyncio.wait(waits, timeout=grace_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        self._stopped = True
        num_cut = self._gate.cut()
        with suppress(TimeoutError):
            async with asyncio.timeout(RELEASE_S):
                await self._gate.drained()
        await self._server.stop(FAREWELL_S if num_cut else None)
