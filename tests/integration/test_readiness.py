"""Case 54: nobody is sent to a service before its model has made real passes."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from outrider.client import generate_request
from outrider.engine import engine as engine_module
from outrider.sampling import SamplingParams
from outrider.serving.channel import open_channel
from outrider.serving.server import Register, ServiceServer
from outrider.v1 import generation_pb2 as pb
from outrider.v1 import worker_pb2, worker_pb2_grpc
from tests.cluster import VERIFIER_NAMES, cluster
from tests.statistical.law import TableLaw
from tests.table_model import VOCAB_SIZE, table_verifier
from verifier_svc.__main__ import open_verifier
from verifier_svc.settings import VerifierSettings

pytestmark = pytest.mark.integration

LOAD_S = 2.0
LAW = TableLaw.random(VOCAB_SIZE, seed=1)
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


async def health(address: str) -> int:
    async with open_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        return (await stub.Check(health_pb2.HealthCheckRequest())).status


async def test_a_worker_that_loads_refuses_at_once_and_is_waited_for() -> None:
    server = ServiceServer(VERIFIER_NAMES)
    address = await server.open()

    async def load() -> None:
        await asyncio.sleep(LOAD_S)
        async with table_verifier(LAW)() as register:
            await server.ready(register)

    loading = asyncio.create_task(load())
    assert await health(address) == NOT_SERVING
    began = time.monotonic()
    async with open_channel(address) as channel:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await worker_pb2_grpc.WorkerServiceStub(channel).GetLoads(worker_pb2.GetLoadsRequest())
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "loading" in str(caught.value.details())
    # Retries of the channel's own policy are part of it.
    assert time.monotonic() - began < LOAD_S
    async with cluster(verifiers=[], verifier_addresses=[address]) as running:
        assert loading.done()
        assert await health(address) == await health(running.address) == SERVING
        info = await running.client.stub.GetServerInfo(pb.GetServerInfoRequest())
        assert info.state == "degraded", "a verifier is enough, a drafter is missed"
        sampling = SamplingParams(temperature=0.0, max_tokens=4)
        output = await running.client.generate(generate_request([1], sampling), timeout_s=10)
        assert output.complete.completion_tokens == 4
    await server.drain(grace_s=0)


async def test_an_orchestrator_without_a_verifier_is_not_ready() -> None:
    async def start() -> None:
        async with cluster(verifiers=[], verifier_addresses=["127.0.0.1:1"]):
            pass

    with pytest.raises(TimeoutError):
        await asyncio.wait_for(start(), timeout=1.0)


async def test_serving_follows_real_passes(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What yields the servicers, upon which health turns, comes after the start-up test."""
    prepare, passed = engine_module.prepare, []

    def recorded(*arguments: object) -> object:
        found = prepare(*arguments)  # type: ignore[arg-type]
        passed.append(found[2].max_error)
        return found

    monkeypatch.setattr(engine_module, "prepare", recorded)

    @asynccontextmanager
    async def opened() -> AsyncIterator[Register]:
        assert not passed
        async with open_verifier(VerifierSettings(model=str(toy), dtype="float32")) as register:
            assert len(passed) == 1
            yield register

    async with cluster(verifiers=[opened]):
        assert passed[0] < 1e-3
