"""2. start and token_ids say what the sequence is from start on.

Rollback, retry and lag are one case.
"""

import pytest

from tests.conformance.conftest import Worker
from tests.conformance.wire import draft_stream, verify_stream

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.integration]
PROMPT = [10, 20, 30, 40]


async def fresh(verifier: Worker, ids: list[int]) -> int:
    """What a new lease says after the ids."""
    async with verify_stream(verifier.address, salt="c02-fresh") as stream:
        return (await stream.step(ids)).verdict.next_token_id


async def test_a_rolled_back_verifier_says_what_a_fresh_one_says(verifier: Worker) -> None:
    async with verify_stream(verifier.address, salt="c02") as stream:
        first = (await stream.step([*PROMPT, 50, 60, 70])).verdict
        assert first.cache_length == 7
        rolled = (await stream.step([*PROMPT, 51, 61], start=4)).verdict
        assert rolled.cache_length == 6
        assert rolled.next_token_id == await fresh(verifier, [*PROMPT, 51, 61])
        lagging = (await stream.step([*PROMPT, 51, 61, 71, 81], start=2)).verdict
        assert lagging.next_token_id == await fresh(verifier, [*PROMPT, 51, 61, 71, 81])


async def test_a_rolled_back_drafter_drafts_what_a_fresh_one_drafts(drafter: Worker) -> None:
    async with draft_stream(drafter.address) as stream:
        await stream.advance([*PROMPT, 50, 60])
        await stream.read()
        await stream.advance([*PROMPT, 51], start=4)
        rolled = (await stream.read()).block
    async with draft_stream(drafter.address) as stream:
        await stream.advance([*PROMPT, 51])
        assert (await stream.read()).block.draft.token_ids == rolled.draft.token_ids
    assert rolled.base_length == 5
