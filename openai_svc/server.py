"""The HTTP server from its first open port to its last answer."""

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import structlog
import uvicorn
from starlette.types import ASGIApp

from outrider.serving.process import published
from outrider.serving.settings import ServiceSettings
from outrider.serving.signals import StopSignals

# Connections that may wait until they are accepted; load tools open hundreds at once.
BACKLOG = 2048

log = structlog.get_logger()


class Server(uvicorn.Server):
    """Leaves signals alone: they mean the same to all services."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def serve(app: ASGIApp, settings: ServiceSettings) -> None:
    """Answer until a signal; then refuse connections and let running answers finish.

    A second signal, or the end of the grace period, cuts them.

    Raises: OSError if the port is taken or the host is not this machine's.
    """
    listener = listen(settings.host.strip("[]"), settings.port)
    config = uvicorn.Config(
        app,
        log_config=None,  # the process's own
        log_level="warning",  # its beginning and end are told below
        access_log=False,
        lifespan="off",
        backlog=BACKLOG,
        timeout_graceful_shutdown=settings.grace_s,  # type: ignore[arg-type]
    )
    server = Server(config)
    address = _address(listener)
    with published(address, settings.port_file), StopSignals() as signals:
        signals.loaded()
        log.info("service_started", address=address, pid=os.getpid())
        stopping = asyncio.create_task(_stop(server, signals))
        try:
            await server.serve(sockets=[listener])
        finally:
            stopping.cancel()
    log.info("service_stopped")


async def _stop(server: Server, signals: StopSignals) -> None:
    await signals.requested.wait()
    log.info("service_draining", num_running=len(server.server_state.tasks))
    server.should_exit = True
    await signals.hurried.wait()
    server.force_exit = True


def listen(host: str, port: int) -> socket.socket:
    """Open the port, 0 for a free one; Raises: OSError saying which could not be had."""
    try:
        family, _, _, _, place = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        # The protocol is named: asyncio sends without delay only where it is, and short answers
        # would wait 40 ms for an acknowledgement.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(place)
            listener.listen(BACKLOG)
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise OSError(f"cannot listen on {host}:{port}: {error.strerror}") from error
    return listener


def _address(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
