"""A bare bidirectional stream that sends back what it gets: what gRPC itself costs here."""

import asyncio
import statistics
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc

from outrider.serving.channel import open_channel
from outrider.serving.options import server_options

METHOD = "Echo"
SERVICE = "outrider.bench.Echo"
PAYLOAD = bytes(256)  # about the size of a step


async def serve() -> None:
    """Print the port and echo until the process ends."""

    async def echo(requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext) -> None:
        async for request in requests:
            await context.write(request)

    server = grpc.aio.server(options=server_options())
    handlers = {METHOD: grpc.stream_stream_rpc_method_handler(echo)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    print(server.add_insecure_port("127.0.0.1:0"), flush=True)
    await server.start()
    await server.wait_for_termination()


@asynccontextmanager
async def echo_process() -> AsyncIterator[str]:
    """Run the service in a process of its own; yield its address."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.echo", stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        yield f"127.0.0.1:{int(await process.stdout.readline())}"
    finally:
        process.kill()
        await process.wait()


async def round_trip_ms(pause_s: float, num_trips: int) -> float:
    """Return the median round trip with a pause before each, as a verification leaves one."""
    async with echo_process() as address:
        channel = open_channel(address)
        call = channel.stream_stream(f"/{SERVICE}/{METHOD}")()
        trips = []
        for _ in range(num_trips):
            await asyncio.sleep(pause_s)
            began = time.perf_counter()
            await call.write(PAYLOAD)
            await call.read()
            trips.append((time.perf_counter() - began) * 1e3)
        call.cancel()
        await channel.close()
    return statistics.median(trips)


if __name__ == "__main__":
    asyncio.run(serve())
