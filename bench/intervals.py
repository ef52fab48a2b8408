"""How far apart the chunks of one request arrive."""

import time
from itertools import pairwise

from outrider.client import Client
from outrider.v1 import generation_pb2 as pb


async def cycle_intervals(
    client: Client, request: pb.GenerateRequest
) -> tuple[list[float], pb.Receipt]:
    """Return the seconds between the cycles of a request, and its receipt."""
    arrivals: list[float] = []
    async for response in client.stream(request):
        if response.WhichOneof("kind") == "chunk":
            arrivals.append(time.perf_counter())
        else:
            receipt = response.complete.receipt
    return [after - before for before, after in pairwise(arrivals)], receipt
