"""3. cache_length counts committed positions with valid KV, never draft rows.

A difference is counted and healed.
"""

import pytest

from orchestrator.kv_ledger import KVLedger
from tests.conformance.conftest import Worker
from tests.conformance.wire import draft_stream, verify_stream

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.integration]
PROMPT = [10, 20, 30, 40]


async def test_a_verdict_states_committed_positions_only(verifier: Worker) -> None:
    async with verify_stream(verifier.address, salt="c03") as stream:
        first = (await stream.step(PROMPT)).verdict
        assert first.cache_length == 4
        right = first.next_token_id
        wrong = (right + 1) % 500
        rejected = (await stream.step(PROMPT, start=3, draft=[wrong, 7, 8])).verdict
        assert list(rejected.accepted_nodes) == []
        assert rejected.cache_length == 4
        accepted = (await stream.step(PROMPT, start=3, draft=[right])).verdict
        assert list(accepted.accepted_nodes) == [0]
        assert accepted.cache_length == 5


async def test_a_block_states_committed_positions_only(drafter: Worker) -> None:
    async with draft_stream(drafter.address) as stream:
        await stream.advance(PROMPT, pending=[50, 60], num_tokens=4)
        block = (await stream.read()).block
        assert len(block.draft.token_ids) == 4
        assert block.cache_length == 4


async def test_the_ledger_counts_a_difference_and_starts_from_the_smaller_length() -> None:
    ledger = KVLedger()
    ledger.expect(9)
    ledger.observe(9)
    assert (ledger.cache_length, ledger.num_heals) == (9, 0)
    ledger.observe(5)
    assert (ledger.cache_length, ledger.num_heals) == (5, 1)
    ledger.expect(9)
    ledger.observe(12)
    assert (ledger.cache_length, ledger.num_heals) == (9, 2)
