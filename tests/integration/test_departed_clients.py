"""Case 49: clients that leave, at any point of a stream, leave nothing behind."""

import asyncio
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import pytest
import pytest_asyncio

from drafter_svc.__main__ import open_drafter
from drafter_svc.settings import DrafterSettings
from outrider.client import generate_request
from outrider.sampling import SamplingParams
from outrider.serving.channel import open_channel
from outrider.v1 import generation_pb2 as pb
from outrider.v1 import worker_pb2, worker_pb2_grpc
from tests.cluster import Cluster, cluster
from verifier_svc.__main__ import open_verifier
from verifier_svc.settings import VerifierSettings

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

SAMPLING = SamplingParams(temperature=1.0, seed=5, max_tokens=400, ignore_eos=True)
FREED_S = 2.0
AT_ONCE = 40


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def services(toy: Path) -> AsyncIterator[Cluster]:
    verifier = VerifierSettings(model=str(toy), dtype="float32", num_threads=1)
    drafter = DrafterSettings(model=str(toy), dtype="float32", num_threads=1)
    async with cluster(
        verifiers=[lambda: open_verifier(verifier)], drafters=[lambda: open_drafter(drafter)]
    ) as running:
        yield running


@dataclass(frozen=True)
class Residue:
    """What requests may not leave behind."""

    leases: tuple[int, ...]
    free_kv_tokens: tuple[int, ...]
    num_requests: tuple[int, int]
    num_threads: int


async def residue(services: Cluster) -> Residue:
    loads = []
    for address in (*services.verifiers, *services.drafters):
        async with open_channel(address) as channel:
            stub = worker_pb2_grpc.WorkerServiceStub(channel)
            loads.append((await stub.GetLoads(worker_pb2.GetLoadsRequest())).load)
    request = pb.GenerationServiceGetLoadsRequest()
    own = (await services.client.stub.GetLoads(request)).load
    return Residue(
        tuple(load.num_running_reqs for load in loads),
        tuple(load.free_kv_tokens for load in loads),
        (own.num_running_reqs, own.num_waiting_reqs),
        threading.active_count(),
    )


async def until_equal(services: Cluster, before: Residue, num_tasks: int) -> None:
    """Wait until everything is as it was; tasks may be fewer."""
    try:
        async with asyncio.timeout(FREED_S):
            while await residue(services) != before or len(asyncio.all_tasks()) > num_tasks:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
    except TimeoutError:
        tasks = [str(task.get_coro()) for task in asyncio.all_tasks()]
        raise AssertionError((await residue(services), before, len(tasks), num_tasks)) from None


async def leave_after(services: Cluster, num_chunks: int, prompt: list[int]) -> None:
    request = generate_request(prompt, SAMPLING, sources=["model"], num_draft_tokens=3)
    call = services.client.stub.Generate(request, timeout=30)
    for _ in range(num_chunks):
        await call.read()
    if not num_chunks:
        await asyncio.sleep(0.005)  # in the middle of the prompt
    call.cancel()


async def test_streams(services: Cluster) -> None:
    """200 of them: before the first token, after it, after a few, and during a long prompt."""
    await leave_after(services, 3, [1, 2, 3])  # every channel has been used once
    await asyncio.sleep(0.3)
    before, num_tasks = await residue(services), len(asyncio.all_tasks())
    assert set(before.leases) == {0}
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> None:
        num_chunks = (0, 1, 3, 0)[number % 4]
        prompt = [1 + number % 300, 2, 3] * (30 if number % 4 == 3 else 1)
        async with slots:
            await leave_after(services, num_chunks, prompt)

    await asyncio.gather(*(one(number) for number in range(200)))
    await until_equal(services, before, num_tasks)


async def test_unary_calls(services: Cluster) -> None:
    before, num_tasks = await residue(services), len(asyncio.all_tasks())
    calls = [
        services.client.stub.Tokenize(pb.TokenizeRequest(text="word " * 2_000)) for _ in range(50)
    ]
    for call in calls:
        call.cancel()
    await asyncio.gather(*calls, return_exceptions=True)
    await until_equal(services, before, num_tasks)


async def test_passes_stop_when_nobody_listens(services: Cluster) -> None:
    """The verifier counts no rows of a client that left."""
    request = generate_request([5, 6, 7], SAMPLING, target_only=True)
    call = services.client.stub.Generate(request, timeout=30)
    for _ in range(3):
        await call.read()
    call.cancel()
    before = await residue(services)
    await asyncio.sleep(0.5)
    after = await residue(services)
    assert set(after.leases) == {0}
    assert sum(after.free_kv_tokens) >= sum(before.free_kv_tokens)
    with pytest.raises((asyncio.CancelledError, grpc.aio.AioRpcError)):
        await call.read()
