"""Measures of a service over HTTP, as Prometheus reads them."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import structlog
from prometheus_client import CollectorRegistry, ProcessCollector, start_http_server

from outrider.serving.settings import ServiceSettings

log = structlog.get_logger()


@asynccontextmanager
async def serving_metrics(settings: ServiceSettings) -> AsyncIterator[CollectorRegistry]:
    """Yield the service's own registry and answer /metrics with what it holds until the exit.

    Nothing is served where the settings name no port.

    Raises: OSError if the port is taken or the host is not this machine's.
    """
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    host, port = settings.host.strip("[]"), settings.metrics_port
    if not port:
        yield registry
        return
    try:
        # In a thread, since a name may have to be resolved.
        server, thread = await asyncio.to_thread(start_http_server, port, host, registry)
    except OSError as error:
        raise OSError(
            f"--metrics-port {port}: cannot listen on {host}: {error.strerror}"
        ) from error
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    log.info("metrics_started", address=address)
    try:
        yield registry
    finally:
        await asyncio.to_thread(server.shutdown)
        server.server_close()
        thread.join()
