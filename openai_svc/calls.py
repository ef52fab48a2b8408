"""Calls of the orchestrator: several at once, and their errors as HTTP says them."""

import asyncio
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from typing import TypeVar

import grpc
from google.rpc.error_details_pb2 import RetryInfo
from grpc_status import rpc_status

from openai_svc.errors import ApiError, from_details

Code = grpc.StatusCode
STATUSES = {
    Code.INVALID_ARGUMENT: 400,
    # Not 409, which clients repeat; a model that is not the expected one stays so.
    Code.FAILED_PRECONDITION: 400,
    Code.NOT_FOUND: 404,
    Code.RESOURCE_EXHAUSTED: 429,
    Code.UNAVAILABLE: 503,
    Code.DEADLINE_EXCEEDED: 504,
}
CODES = {429: "rate_limit_exceeded", 503: "service_unavailable", 504: "timeout"}
RETRY_AFTER_S = 1.0

T = TypeVar("T")


def from_rpc(error: grpc.aio.AioRpcError, param_of: Callable[[str], str] = str) -> ApiError:
    """Return what an HTTP client is told of a call that failed."""
    details = error.details() or error.code().name
    status = STATUSES.get(error.code(), 500)
    if error.code() is Code.INVALID_ARGUMENT:
        return from_details(details, param_of)
    if status == 404:
        return ApiError(404, details, param="model", code="model_not_found")
    retry_after_s = _retry_after_s(error) if status in (429, 503) else None
    return ApiError(status, details, code=CODES.get(status), retry_after_s=retry_after_s)


async def merged(streams: Sequence[AsyncGenerator[T, None]]) -> AsyncGenerator[tuple[int, T], None]:
    """Yield what several streams yield, with the stream's number, as it comes.

    All end when one fails or when this is closed. Raises: what the first that failed raised.
    """
    # As many as there are streams: a caller that reads slowly holds each back by one.
    queue: asyncio.Queue[tuple[int, T] | Exception | None] = asyncio.Queue(len(streams))

    async def pump(number: int, stream: AsyncGenerator[T, None]) -> None:
        try:
            async with aclosing(stream):
                async for each in stream:
                    await queue.put((number, each))
        except Exception as error:
            await queue.put(error)
        else:
            await queue.put(None)

    pumps = [asyncio.create_task(pump(*each)) for each in enumerate(streams)]
    num_running = len(pumps)
    try:
        while num_running:
            item = await queue.get()
            if isinstance(item, Exception):
                raise item
            if item is None:
                num_running -= 1
            else:
                yield item
    finally:
        for each in pumps:
            each.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)


def _retry_after_s(error: grpc.aio.AioRpcError) -> float:
    status = rpc_status.from_call(error)
    for detail in status.details if status is not None else ():
        retry = RetryInfo()
        if detail.Unpack(retry):
            return float(retry.retry_delay.ToTimedelta().total_seconds())
    return RETRY_AFTER_S
