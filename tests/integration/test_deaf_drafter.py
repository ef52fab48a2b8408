"""A drafter that stops reading or answering costs a request its drafts, never its progress."""

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest

from drafter_svc.servicer import DrafterServicer
from outrider.client import generate_request
from outrider.sampling import SamplingParams
from outrider.v1 import drafter_pb2
from tests.cluster import cluster
from tests.statistical.law import TableLaw
from tests.table_model import VOCAB_SIZE, table_drafter, table_verifier

pytestmark = pytest.mark.integration

CONTEXT = 1 << 20
LAW = TableLaw.random(VOCAB_SIZE, seed=1)
# Long enough that gRPC's buffers fill up: every advance repeats ids that were never acknowledged.
PROMPT = [1, 2, 3, 4] * 75_000
SAMPLING = SamplingParams(temperature=1.0, seed=5, max_tokens=40)


class Deaf(DrafterServicer):
    """Opens a lease and never reads again."""

    async def Draft(
        self,
        request_iterator: AsyncIterator[drafter_pb2.DraftRequest],
        context: grpc.aio.ServicerContext,
    ) -> None:
        """Read one message."""
        await anext(aiter(request_iterator))
        await asyncio.Event().wait()


class Mute(DrafterServicer):
    """Takes everything and says nothing."""

    async def Draft(
        self,
        request_iterator: AsyncIterator[drafter_pb2.DraftRequest],
        context: grpc.aio.ServicerContext,
    ) -> None:
        """Read on and on."""
        async for _ in request_iterator:
            pass


async def test_nobody_waits_long_for_a_drafter_that_says_nothing():
    async with cluster(
        verifiers=[table_verifier(LAW)],
        drafters=[table_drafter(LAW, servicer=Mute)],
        draft_wait_ms=20,
        lookup_on_miss=False,
    ) as services:
        outputs = [
            await services.client.generate(
                generate_request([1, 2], SAMPLING, sources=["model"], num_draft_tokens=4),
                timeout_s=20,
            )
            for _ in range(2)
        ]
    late = [
        {each.reason: each.count for each in output.complete.receipt.fallbacks}["late_draft"]
        for output in outputs
    ]
    assert min(late) > 30, "every cycle goes without"
    waited_ms = sum(output.complete.receipt.draft_ms for output in outputs)
    # Three waits, then pauses that no request sits out; a busy machine may add one or two.
    assert waited_ms < 10 * 20


async def test_a_request_goes_on_without_it():
    async with cluster(
        verifiers=[table_verifier(LAW, max_context_length=CONTEXT)],
        drafters=[table_drafter(LAW, max_context_length=CONTEXT, servicer=Deaf)],
        draft_wait_ms=0,
        lookup_on_miss=False,
    ) as services:
        request = generate_request(PROMPT, SAMPLING, sources=["model"])
        output = await services.client.generate(request, timeout_s=20)
        plain = await services.client.generate(
            generate_request(PROMPT, SAMPLING, target_only=True), timeout_s=20
        )
    assert output.token_ids == plain.token_ids
    reasons = {each.reason for each in output.complete.receipt.fallbacks}
    assert "drafter_lost" in reasons
