"""The OpenAI front door in this process, on a free port of loopback."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import uvicorn
from openai import AsyncOpenAI
from prometheus_client import CollectorRegistry

from openai_svc.observed import Observed
from openai_svc.server import Server, listen
from openai_svc.servicer import FrontDoor
from outrider.client import Client


@asynccontextmanager
async def front_door(
    orchestrator: str, *, timeout_s: float = 50.0, forwarded: Sequence[str] = ()
) -> AsyncIterator[str]:
    """Serve what an orchestrator generates; yield http://host:port."""
    async with Client(orchestrator) as client:
        app = Observed(FrontDoor(client, timeout_s, forwarded).app, CollectorRegistry())
        server = Server(
            uvicorn.Config(app, log_config=None, lifespan="off", timeout_graceful_shutdown=5)
        )
        with listen("127.0.0.1", 0) as listener:
            port = listener.getsockname()[1]
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            try:
                yield f"http://127.0.0.1:{port}"
            finally:
                server.should_exit = True
                await serving


def openai_client(url: str) -> AsyncOpenAI:
    """Return OpenAI's own client, which says at once what went wrong."""
    return AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=50.0)
