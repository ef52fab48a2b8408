"""6. Prefix cache keys hold the salt; nothing is shared across salts, nor what was rejected."""

import pytest

from tests.conformance.conftest import Worker
from tests.conformance.wire import verify_stream

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.integration]
PROMPT = list(range(200, 250))


async def cached(verifier: Worker, ids: list[int], salt: str) -> int:
    """Positions that a new lease of the salt finds."""
    async with verify_stream(verifier.address, salt=salt) as stream:
        return (await stream.step(ids)).verdict.cached_tokens


async def test_a_prefix_is_found_under_its_own_salt_only(verifier: Worker) -> None:
    assert await cached(verifier, PROMPT, "one") == 0
    assert await cached(verifier, PROMPT, "one") == 48
    assert await cached(verifier, PROMPT, "two") == 0
    assert await cached(verifier, PROMPT, "") == 0


async def test_rejected_rows_are_never_shared(verifier: Worker) -> None:
    ids = PROMPT[:14]
    async with verify_stream(verifier.address, salt="rejected") as stream:
        right = (await stream.step(ids)).verdict.next_token_id
        wrong = [(right + 1) % 500, 1, 2, 3]
        assert not (await stream.step(ids, start=13, draft=wrong)).verdict.accepted_nodes
    assert await cached(verifier, [*ids, *wrong], "rejected") == 0


async def test_only_what_a_step_found_counts_as_cached(verifier: Worker) -> None:
    async with verify_stream(verifier.address, salt="counted") as stream:
        first = (await stream.step(PROMPT)).verdict
        assert first.cached_tokens == 0
        ids = [*PROMPT, first.next_token_id]
        assert (await stream.step(ids, start=len(PROMPT))).verdict.cached_tokens == 0
