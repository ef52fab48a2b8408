"""Case 52: pings through a long silence send nobody away; a server that came back is found."""

import asyncio
import json
import signal
import sys
import time
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from outrider.serving.channel import open_channel
from outrider.serving.options import KEEPALIVE_TIME_MS, KEEPALIVE_TIMEOUT_MS
from outrider.serving.server import ServiceServer

pytestmark = pytest.mark.integration

NAME = "kennel.Kennel"
# The channel pings every 10 s; a server with gRPC's own options closes at the fifth ping.
SILENCE_S = 60


async def sleep(request: bytes, context) -> bytes:
    await asyncio.sleep(float(request))
    return b"awake"


def register(server: grpc.aio.Server) -> None:
    handlers = {"Sleep": grpc.unary_unary_rpc_method_handler(sleep)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(NAME, handlers),))


async def sleep_at(address: str) -> bytes:
    async with open_channel(address) as channel:
        return await channel.unary_unary(f"/{NAME}/Sleep")(str(SILENCE_S).encode())


@pytest.mark.slow
@pytest.mark.timeout(120)
async def test_pings_through_a_long_silence_do_not_close_the_connection():
    """Beside it the control: the same silence at a server with gRPC's own options."""
    ours = ServiceServer([NAME])
    address = await ours.open()
    await ours.ready(register)
    plain = grpc.aio.server()
    register(plain)
    port = plain.add_insecure_port("127.0.0.1:0")
    await plain.start()
    awake, sent_away = await asyncio.gather(
        sleep_at(address),
        sleep_at(f"127.0.0.1:{port}"),
        return_exceptions=True,
    )
    await plain.stop(None)
    await ours.drain(grace_s=0)
    assert awake == b"awake"
    assert isinstance(sent_away, grpc.aio.AioRpcError)
    assert sent_away.code() is grpc.StatusCode.UNAVAILABLE
    assert "pings" in str(sent_away.details())


@pytest.mark.slow
async def test_a_peer_that_hangs_is_noticed_within_the_promised_time():
    """A stopped process keeps its connections open and answers no ping."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.integration.serving.kennel_service"),
        stdout=asyncio.subprocess.PIPE,
        cwd=Path(__file__).parents[3],
    )
    try:
        assert process.stdout is not None
        address = json.loads(await process.stdout.readline())["address"]
        async with open_channel(address) as channel:
            health = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
            while (await health.read()).status != health_pb2.HealthCheckResponse.SERVING:
                pass
            walk = channel.unary_stream(f"/{NAME}/Walk")(b"600")
            assert await walk.read() == b"step"
            process.send_signal(signal.SIGSTOP)
            stopped_s = time.monotonic()
            assert await walk.code() is grpc.StatusCode.UNAVAILABLE
            noticed_s = time.monotonic() - stopped_s
    finally:
        process.kill()
        await process.wait()
    assert noticed_s < (KEEPALIVE_TIME_MS + KEEPALIVE_TIMEOUT_MS) / 1e3 + 3


async def test_a_channel_finds_a_server_that_came_back_within_seconds():
    first = ServiceServer([NAME])
    address = await first.open()
    port = int(address.rpartition(":")[2])
    async with open_channel(address) as channel:
        method = channel.unary_unary(f"/{NAME}/Sleep")
        await first.drain(grace_s=0)
        with pytest.raises(grpc.aio.AioRpcError):
            await method(b"0")
        await asyncio.sleep(2)  # long enough for the reconnects to back off
        second = ServiceServer([NAME], port=port)
        await second.open()
        await second.ready(register)
        assert await method(b"0", timeout=3, wait_for_ready=True) == b"awake"
        await second.drain(grace_s=0)
