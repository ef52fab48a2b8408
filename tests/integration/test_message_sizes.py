"""Case 51: one limit on every hop; above it a clear status, and the others go on."""

import asyncio
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass

import grpc
import pytest
import pytest_asyncio

from outrider.client import Client, Output, generate_request
from outrider.sampling import SamplingParams
from outrider.serving.options import MAX_MESSAGE_BYTES
from outrider.v1 import drafter_pb2
from tests.cluster import DRAFTER_NAMES, cluster, serving
from tests.conformance.relay import relay
from tests.statistical.law import TableLaw
from tests.table_model import VOCAB_SIZE, table_drafter, table_verifier

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

CONTEXT = 1 << 23
LAW = TableLaw.random(VOCAB_SIZE, seed=1)
SAMPLING = SamplingParams(temperature=1.0, seed=5, max_tokens=12)
MB = 1_000_000


@dataclass(slots=True)
class Services:
    """A target of a very long context, and a drafter whose answers can be made bulky."""

    client: Client
    num_bulk_ids: int = 0

    async def generate(self, prompt: list[int], **options: object) -> Output:
        request = generate_request(prompt, SAMPLING, **options)  # type: ignore[arg-type]
        return await self.client.generate(request, timeout_s=60)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def services() -> AsyncIterator[Services]:
    made: Services

    def bulky(message: bytes) -> Iterable[bytes]:
        """Send a big block that fits nothing before every honest one."""
        if made.num_bulk_ids:
            path = [2**32 - 1] * made.num_bulk_ids  # five bytes each
            block = drafter_pb2.DraftBlock(base_length=1, path_token_ids=path)
            yield drafter_pb2.DraftResponse(block=block).SerializeToString()
        yield message

    drafter = table_drafter(LAW, max_context_length=CONTEXT)
    async with (
        serving(DRAFTER_NAMES, drafter) as address,
        cluster(
            verifiers=[table_verifier(LAW, max_context_length=CONTEXT)],
            drafters=[relay(address, "Draft", responses=bulky)],
            draft_wait_ms=10_000,
            lookup_on_miss=False,
        ) as running,
    ):
        made = Services(running.client)
        yield made


@pytest.mark.parametrize("num_bytes", [39 * MB // 10, 41 * MB // 10])
async def test_a_long_prompt_passes_every_hop(services: Services, num_bytes: int) -> None:
    """A small id takes one byte, so the prompt is as long as its message."""
    prompt = [1 + i % 5 for i in range(num_bytes)]
    output = await services.generate(prompt, target_only=True)
    assert output.complete.prompt_tokens == num_bytes
    assert output.complete.completion_tokens == 12


async def test_a_longer_message_is_refused_by_its_limit(services: Services) -> None:
    beside = asyncio.create_task(services.generate([1, 2, 3], sources=["model"]))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await services.generate([1] * 20 * MB)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert str(MAX_MESSAGE_BYTES) in str(caught.value.details())
    assert (await beside).complete.completion_tokens == 12
    again = await services.generate([1, 2, 3], sources=["model"])
    assert again.token_ids == (await beside).token_ids


async def test_a_drafter_may_send_more_than_grpcs_own_limit(services: Services) -> None:
    plain = await services.generate([1, 2, 3], target_only=True)
    services.num_bulk_ids = MB  # 5 MB, over gRPC's default of 4 MiB
    bulky = await services.generate([1, 2, 3], sources=["model"], num_draft_tokens=2)
    assert bulky.token_ids == plain.token_ids
    assert bulky.complete.receipt.num_draft_tokens > 0
    assert "drafter_lost" not in {each.reason for each in bulky.complete.receipt.fallbacks}


async def test_a_drafter_that_sends_too_much_is_done_without(services: Services) -> None:
    plain = await services.generate([1, 2, 3], target_only=True)
    services.num_bulk_ids = 4 * MB  # 20 MB
    bulky = await services.generate([1, 2, 3], sources=["model"], num_draft_tokens=2)
    services.num_bulk_ids = 0
    assert bulky.token_ids == plain.token_ids
    assert bulky.complete.receipt.num_draft_tokens == 0
    lost = {each.reason for each in bulky.complete.receipt.fallbacks}
    assert lost & {"drafter_lost", "drafter_full"}
