"""The life of a service process: settings in, exit code out."""

import asyncio
import os
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import structlog

from outrider.errors import OutriderError
from outrider.serving.logs import configure_logging
from outrider.serving.server import Register, ServiceServer, Waiting
from outrider.serving.settings import ServiceSettings
from outrider.serving.signals import StopSignals

OpenService = Callable[[], AbstractAsyncContextManager[Register | Waiting]]
"""Loads what the service needs, yields how to register its servicers, releases on exit."""

log = structlog.get_logger()


def run(
    settings: ServiceSettings,
    *,
    service: str,
    service_names: Sequence[str],
    open_service: OpenService,
) -> int:
    """Serve gRPC until SIGTERM or SIGINT; the exit code is 0, or 1 if the service failed."""
    serving = serve(settings, service_names=service_names, open_service=open_service)
    return run_to_end(serving, settings, service=service)


def run_to_end(
    serving: Coroutine[Any, Any, None], settings: ServiceSettings, *, service: str
) -> int:
    """Run the life of a service; the exit code is 0, or 1 if the service failed."""
    configure_logging(service, level=settings.log_level)
    try:
        asyncio.run(serving)
    except (OutriderError, OSError) as error:
        log.error("service_failed", detail=str(error))
        return 1
    except Exception as error:
        log.exception("service_failed", detail=str(error))
        return 1
    return 0


async def serve(
    settings: ServiceSettings, *, service_names: Sequence[str], open_service: OpenService
) -> None:
    """Open the port, load, serve; after the first signal drain, stop and release, in this order.

    Raises: what loading raised, or what a task of the service raised while it served.
    """
    started_s = time.monotonic()
    server = ServiceServer(service_names, host=settings.host, port=settings.port)
    address = await server.open()
    with StopSignals() as signals:
        try:
            with published(address, settings.port_file):
                log.info("service_started", address=address, pid=os.getpid())
                async with open_service() as opened:
                    try:
                        await server.ready(opened)
                        signals.loaded()
                        log.info("service_ready", load_s=round(time.monotonic() - started_s, 3))
                        await signals.requested.wait()
                        log.info("service_draining", num_running=server.num_running)
                        await server.drain(grace_s=settings.grace_s, hurry=signals.hurried)
                    finally:
                        await server.drain(grace_s=0)  # no RPC outlives what it uses
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or not signals.interrupted_loading:
                raise
            task.uncancel()
        finally:
            await server.drain(grace_s=0)
    log.info("service_stopped")


@contextmanager
def published(address: str, port_file: Path | None) -> Iterator[None]:
    """Keep the address in the file, whole or not at all, as long as the port is open.

    Raises: OSError if the file cannot be written.
    """
    if port_file is None:
        yield
        return
    unfinished = port_file.parent / f"{port_file.name}.{os.getpid()}"
    try:
        unfinished.write_text(address)
        unfinished.replace(port_file)
    except OSError as error:
        with suppress(OSError):
            unfinished.unlink()
        raise OSError(f"--port-file {port_file} cannot be written: {error.strerror}") from error
    try:
        yield
    finally:
        port_file.unlink(missing_ok=True)
