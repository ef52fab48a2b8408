"""1. When a stream ends, its blocks lose their owner.

Full committed blocks stay as evictable cache.
"""

import asyncio

import pytest

from tests.conformance.conftest import Worker
from tests.conformance.wire import draft_stream, verify_stream

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.integration]
PROMPT = list(range(40, 80))


async def test_a_cancelled_verify_stream_gives_its_blocks_back(verifier: Worker) -> None:
    async with verify_stream(verifier.address, salt="c01") as stream:
        await stream.step(PROMPT)
        assert verifier.engine.stats().num_blocks_used > 0
    await verifier.freed()
    assert verifier.engine.stats().num_blocks_evictable >= len(PROMPT) // 16


async def test_blocks_are_free_within_two_engine_steps(verifier: Worker) -> None:
    async with verify_stream(verifier.address, salt="c01-busy") as busy:
        answer = await busy.step(PROMPT)
        ids = [*PROMPT, answer.verdict.next_token_id]
        held = verifier.engine.stats().num_blocks_used
        async with verify_stream(verifier.address, salt="c01-left") as left:
            await left.step(PROMPT)
        # The cancellation travels; from its arrival on two steps of the other stream are enough.
        await asyncio.sleep(0.2)
        for _ in range(2):
            answer = await busy.step(ids, start=len(ids) - 1)
            ids.append(answer.verdict.next_token_id)
        assert verifier.engine.stats().num_blocks_used <= held + 1
    await verifier.freed()


async def test_a_stream_that_ends_while_a_prompt_is_read_frees_it(verifier: Worker) -> None:
    for _ in range(5):
        async with verify_stream(verifier.address, salt="c01-prefill") as stream:
            reading = asyncio.ensure_future(stream.step(list(range(100))))
            await asyncio.sleep(0.001)
        reading.cancel()
    await verifier.freed()


async def test_a_cancelled_draft_stream_gives_its_blocks_back(drafter: Worker) -> None:
    async with draft_stream(drafter.address) as stream:
        await stream.advance(PROMPT)
        await stream.read()
        assert drafter.engine.stats().num_blocks_used > 0
    await drafter.freed()
