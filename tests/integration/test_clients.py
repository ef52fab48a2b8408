"""The blocking client is the twin of the other: same answers, same errors, same way to leave."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
import pytest_asyncio

from outrider.client import SyncClient, generate_request
from outrider.sampling import SamplingParams
from outrider.v1 import generation_pb2 as pb
from tests.cluster import Cluster, cluster
from verifier_svc.__main__ import open_verifier
from verifier_svc.settings import VerifierSettings

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

SAMPLING = SamplingParams(temperature=0.8, seed=3, max_tokens=12, ignore_eos=True)
FREED_S = 10.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def services(toy: Path) -> AsyncIterator[Cluster]:
    verifier = VerifierSettings(model=str(toy), dtype="float32", num_threads=1)
    async with cluster(verifiers=[lambda: open_verifier(verifier)]) as running:
        yield running


async def test_both_give_the_same_answers(services: Cluster) -> None:
    request = generate_request([("user", "hello")], SAMPLING)
    messages = [("user", "hello"), {"role": "assistant", "content": "so"}]

    def ask() -> tuple[object, ...]:
        with SyncClient(services.address) as client:
            output = client.generate(request, timeout_s=20, request_id="mine")
            assert output.complete.receipt.request_id == "mine"
            ids = client.tokenize(messages)
            return output.text, output.token_ids, ids, client.detokenize(ids)

    client = services.client
    output, ids = await client.generate(request), await client.tokenize(messages)
    expected = output.text, output.token_ids, ids, await client.detokenize(ids)
    assert await asyncio.to_thread(ask) == expected


async def test_an_error_has_its_code_and_its_field(services: Cluster) -> None:
    request = generate_request("x")
    request.sampling_params.top_p = 2.0

    def ask() -> None:
        with SyncClient(services.address) as client:
            client.generate(request, timeout_s=20)

    with pytest.raises(grpc.RpcError, match="sampling_params.top_p") as error_info:
        await asyncio.to_thread(ask)
    assert error_info.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_closing_a_stream_frees_its_request(services: Cluster) -> None:
    request = generate_request(
        "abc", SamplingParams(temperature=0.0, max_tokens=400, ignore_eos=True)
    )

    def leave() -> None:
        with SyncClient(services.address) as client:
            stream = client.stream(request)
            assert next(stream).HasField("chunk")
            stream.close()

    await asyncio.to_thread(leave)
    question = pb.GenerationServiceGetLoadsRequest()
    async with asyncio.timeout(FREED_S):
        while (await services.client.stub.GetLoads(question)).load.num_running_reqs:  # noqa: ASYNC110
            await asyncio.sleep(0.02)
