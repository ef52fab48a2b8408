"""9. Every Advance gets at least one DraftBlock.

Empty means nothing to propose; last ends an answer.
"""

import pytest

from tests.conformance.conftest import Worker
from tests.conformance.wire import draft_stream

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.integration]
PROMPT = [10, 20, 30, 40]


async def test_also_one_that_a_newer_one_replaces(drafter: Worker) -> None:
    async with draft_stream(drafter.address) as stream:
        cycles = [await stream.advance(PROMPT, num_tokens=16) for _ in range(6)]
        blocks = [(await stream.read()).block for _ in cycles]
        assert [block.cycle for block in blocks] == cycles
        assert all(block.last for block in blocks)
        assert len(blocks[-1].draft.token_ids) == 16


async def test_nothing_to_propose_is_an_empty_block(drafter: Worker) -> None:
    async with draft_stream(drafter.address, sources=["ngram"]) as stream:
        assert stream.source == "ngram"
        await stream.advance(PROMPT)
        block = (await stream.read()).block
        assert block.last
        assert not block.draft.token_ids
        await stream.advance([*PROMPT, 10, 20], start=4)
        assert list((await stream.read()).block.draft.token_ids[:2]) == [30, 40]


async def test_no_tokens_wanted_is_an_empty_block(drafter: Worker) -> None:
    async with draft_stream(drafter.address) as stream:
        await stream.advance(PROMPT, num_tokens=0)
        block = (await stream.read()).block
        assert block.last
        assert not block.draft.token_ids
        assert block.cache_length == 4
