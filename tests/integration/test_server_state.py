"""What GetServerInfo says of the whole: waiting, degraded or ready, and every pair."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace

import grpc
import pytest

from outrider.client import Client, generate_request
from outrider.sampling import SamplingParams
from outrider.v1 import drafter_pb2, verifier_pb2
from outrider.v1 import generation_pb2 as pb
from tests.cluster import DRAFTER_NAMES, VERIFIER_NAMES, cluster, serving
from tests.conformance.relay import relay
from tests.statistical.law import TableLaw
from tests.table_model import VOCAB_SIZE, table_drafter, table_verifier

pytestmark = pytest.mark.integration

LAW = TableLaw.random(VOCAB_SIZE, seed=1)
SAMPLING = SamplingParams(temperature=1.0, seed=5, max_tokens=8)


async def until(
    client: Client, fits: Callable[[pb.GetServerInfoResponse], bool]
) -> pb.GetServerInfoResponse:
    async with asyncio.timeout(10):
        while True:
            info = await client.stub.GetServerInfo(pb.GetServerInfoRequest())
            if fits(info):
                return info
            await asyncio.sleep(0.02)


async def test_it_is_degraded_without_a_drafter_and_waits_without_a_verifier() -> None:
    async with AsyncExitStack() as exits:
        verifier, drafter = AsyncExitStack(), AsyncExitStack()
        await exits.enter_async_context(verifier)
        await exits.enter_async_context(drafter)
        places = [
            await verifier.enter_async_context(serving(VERIFIER_NAMES, table_verifier(LAW))),
            await drafter.enter_async_context(serving(DRAFTER_NAMES, table_drafter(LAW))),
        ]
        running = await exits.enter_async_context(
            cluster(verifiers=[], verifier_addresses=places[:1], drafter_addresses=places[1:])
        )
        client = running.client
        info = await until(client, lambda info: info.state == "ready")
        assert info.reason == ""
        assert [(p.model, p.drafter, p.reason) for p in info.pairs] == [("table", places[1], "")]
        await drafter.aclose()
        info = await until(client, lambda info: info.state == "degraded")
        assert info.reason == "no drafter for table is ready"
        await client.generate(generate_request([1, 2], SAMPLING), timeout_s=10)
        await verifier.aclose()
        info = await until(client, lambda info: info.state == "waiting")
        assert info.reason == "no verifier is ready"


async def test_a_verifier_that_was_restarted_behind_our_back_is_not_trusted() -> None:
    """Its identity was judged in another life; what it runs now may be something else."""

    def other_life(message: bytes) -> list[bytes]:
        response = verifier_pb2.VerifyResponse.FromString(message)
        if response.WhichOneof("kind") == "opened":
            response.opened.incarnation = "other"
        return [response.SerializeToString()]

    async with (
        serving(VERIFIER_NAMES, table_verifier(LAW)) as address,
        cluster(verifiers=[relay(address, "Verify", responses=other_life)]) as running,
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await running.client.generate(generate_request([1, 2], SAMPLING), timeout_s=10)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert "restarted" in str(caught.value.details())


async def test_a_drafter_that_was_restarted_behind_our_back_is_done_without() -> None:
    def other_life(message: bytes) -> list[bytes]:
        response = drafter_pb2.DraftResponse.FromString(message)
        if response.WhichOneof("kind") == "opened":
            response.opened.incarnation = "other"
        return [response.SerializeToString()]

    async with (
        serving(DRAFTER_NAMES, table_drafter(LAW)) as address,
        cluster(
            verifiers=[table_verifier(LAW)],
            drafters=[relay(address, "Draft", responses=other_life)],
            lookup_on_miss=False,
        ) as running,
    ):
        long = replace(SAMPLING, max_tokens=20)
        output = await running.client.generate(generate_request([1, 2], long), timeout_s=10)
    assert output.complete.completion_tokens == 20
    assert output.complete.receipt.num_draft_tokens == 0
    assert "drafter_restarted" in {each.reason for each in output.complete.receipt.fallbacks}
