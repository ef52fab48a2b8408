"""Waiting until the orchestrator has judged every worker."""

import asyncio
from contextlib import suppress

import grpc

from outrider.client import Client
from outrider.v1 import generation_pb2 as pb

POLL_S = 0.05


async def wait_paired(client: Client, *, timeout_s: float = 30.0) -> list[pb.WorkerInfo]:
    """Return the workers once none is connecting any more.

    Raises: TimeoutError if one still is after ``timeout_s``.
    """
    async with asyncio.timeout(timeout_s):
        while True:
            # On a machine that is busy with loading models the first call may not get through.
            with suppress(grpc.aio.AioRpcError):
                info = await client.stub.GetServerInfo(pb.GetServerInfoRequest(), timeout=5)
                if all(worker.state in ("ready", "refused") for worker in info.workers):
                    return list(info.workers)
            await asyncio.sleep(POLL_S)
