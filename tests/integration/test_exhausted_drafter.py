"""Case 45: a drafter that runs out of memory costs drafts, never a request."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from drafter_svc.servicer import Drafted, DrafterServicer, Ready
from outrider.client import Output, generate_request
from outrider.sampling import SamplingParams
from outrider.serving.channel import open_channel
from outrider.serving.server import ServiceServer
from outrider.v1 import drafter_pb2
from outrider.v1 import generation_pb2 as pb
from tests.cluster import DRAFTER_NAMES, Cluster, cluster
from tests.statistical.law import TableLaw
from tests.table_model import VOCAB_SIZE, table_drafter, table_verifier

pytestmark = pytest.mark.integration

LAW = TableLaw.random(VOCAB_SIZE, seed=1)
SAMPLING = SamplingParams(temperature=1.0, seed=5, max_tokens=24)
SHORT, LONG = [1, 2, 3], [1, 2, 3, 4] * 8


class Exhausted(DrafterServicer):
    """Runs out of memory when it is told to."""

    num_opened = 0

    async def _draft(
        self, sequence: Drafted, advance: drafter_pb2.Advance, ready: Ready
    ) -> drafter_pb2.DraftResponse:
        if self.is_exhausted(advance):
            raise MemoryError("cannot allocate 8 GiB")
        return await super()._draft(sequence, advance, ready)

    def is_exhausted(self, advance: drafter_pb2.Advance) -> bool:
        raise NotImplementedError


class ExhaustedByTheFifthRequest(Exhausted):
    """Serves four requests."""

    async def _open(self, request: drafter_pb2.DraftRequest):  # type: ignore[no-untyped-def]
        self.num_opened += 1
        return await super()._open(request)

    def is_exhausted(self, advance: drafter_pb2.Advance) -> bool:
        return self.num_opened == 5


class ExhaustedByLongPrompts(Exhausted):
    """Has room for a few positions."""

    def is_exhausted(self, advance: drafter_pb2.Advance) -> bool:
        return advance.start + len(advance.token_ids) > 30


async def ask(services: Cluster, prompt: list[int], *, drafts: bool = True) -> Output:
    request = generate_request(
        prompt, SAMPLING, sources=["model"] if drafts else [], target_only=not drafts
    )
    return await services.client.generate(request, timeout_s=10)


def reasons(output: Output) -> set[str]:
    return {each.reason for each in output.complete.receipt.fallbacks}


async def test_on_the_fifth_request() -> None:
    async with cluster(
        verifiers=[table_verifier(LAW)],
        drafters=[table_drafter(LAW, servicer=ExhaustedByTheFifthRequest)],
        draft_wait_ms=5_000,
        lookup_on_miss=False,
    ) as services:
        plain = await ask(services, SHORT, drafts=False)
        outputs = [await ask(services, SHORT) for _ in range(6)]
    assert [output.token_ids for output in outputs] == [plain.token_ids] * 6
    assert ["drafter_lost" in reasons(output) for output in outputs] == [False] * 4 + [True, False]
    assert outputs[5].complete.receipt.num_draft_tokens > 0, "it is taken back"


async def test_on_a_long_prompt_alone() -> None:
    async with cluster(
        verifiers=[table_verifier(LAW)],
        drafters=[table_drafter(LAW, servicer=ExhaustedByLongPrompts)],
        draft_wait_ms=5_000,
        lookup_on_miss=False,
    ) as services:
        plain = await ask(services, LONG, drafts=False)
        drafted = await ask(services, LONG)
        short = await ask(services, SHORT)
    assert drafted.token_ids == plain.token_ids
    assert "drafter_lost" in reasons(drafted)
    assert drafted.complete.receipt.num_draft_tokens == 0
    assert short.complete.receipt.num_draft_tokens > 0


@asynccontextmanager
async def still_loading() -> AsyncIterator[str]:
    """A drafter whose model never gets loaded."""
    server = ServiceServer(DRAFTER_NAMES)
    address = await server.open()
    yield address
    await server.drain(grace_s=0)


async def test_at_its_start() -> None:
    async with (
        still_loading() as address,
        cluster(
            verifiers=[table_verifier(LAW)], drafter_addresses=[address], wait_for_all=False
        ) as services,
    ):
        async with open_channel(address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            answer = await stub.Check(health_pb2.HealthCheckRequest())
            assert answer.status == health_pb2.HealthCheckResponse.NOT_SERVING
        output = await ask(services, SHORT)
        info = await services.client.stub.GetServerInfo(pb.GetServerInfoRequest())
    assert output.complete.completion_tokens == 24
    assert reasons(output) >= {"no_drafter"}
    assert info.state == "degraded"
