"""9. Every Advance gets at least one DraftBlock.

Empty means nothing to propose; last ends an answer.
"""

import grpc
import pytest

from outrider.draft import MAX_OUTCOMES
from outrider.sampling import SamplingParams
from outrider.v1 import common_pb2, drafter_pb2
from tests.conformance.conftest import Worker
from tests.conformance.wire import GREEDY, SAMPLED, DraftStream, draft_stream

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


async def answer(stream: DraftStream) -> tuple[list[list[int]], list[drafter_pb2.DraftBlock]]:
    """Read an answer to its last block: the announced outcomes and the blocks."""
    outcomes: list[list[int]] = []
    blocks: list[drafter_pb2.DraftBlock] = []
    while not blocks or not blocks[-1].last:
        response = await stream.read()
        if response.WhichOneof("kind") == "outcomes":
            assert not blocks, "outcomes are told before the blocks"
            outcomes = [list(path.token_ids) for path in response.outcomes.paths]
        else:
            blocks.append(response.block)
    return outcomes, blocks


@pytest.mark.parametrize("source", ["model", "ngram", "suffix", "recycling", "suffix+recycling"])
async def test_several_outcomes_are_one_answer(drafter: Worker, source: str) -> None:
    prompt, pending = [10, 20, 30, 40, 10, 20, 50, 10], [20, 30]
    async with draft_stream(drafter.address, sources=[source]) as stream:
        cycle = await stream.advance(prompt, pending=pending, max_outcomes=4)
        outcomes, blocks = await answer(stream)
        assert [block.last for block in blocks] == [False] * (len(blocks) - 1) + [True]
        paths = [list(block.path_token_ids) for block in blocks if block.draft.token_ids]
        assert all(path in outcomes for path in paths)
        assert len(outcomes) == len(set(map(tuple, outcomes))) <= 4
        for path in outcomes:
            assert 1 <= len(path) <= len(pending) + 1
            assert path[:-1] == pending[: len(path) - 1]
            assert path != pending[: len(path)], "a pending token that is rejected"
        assert {(block.cycle, block.base_length) for block in blocks} == {(cycle, len(prompt))}
        if source == "model":
            assert len(paths) == len(outcomes) == 4
            assert all(len(block.draft.token_ids) == 4 for block in blocks)
            assert {block.cache_length for block in blocks} == {len(prompt)}
        if source in ("ngram", "suffix"):
            assert len(paths) > 1, "30 and 50 both followed 20"
        # The lease goes on as if one outcome had been asked for.
        await stream.advance([*prompt, *pending, 7], start=len(prompt))
        assert (await stream.read()).block.last


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "coupled"])
@pytest.mark.parametrize("mode", [None, common_pb2.MODE_RATIO], ids=["own", "ratio"])
async def test_a_block_for_an_outcome_is_what_would_be_drafted_once_it_has_happened(
    drafter: Worker, sampling: SamplingParams, mode: int | None
) -> None:
    if mode is not None and sampling.is_greedy:
        pytest.skip("ratio samples")
    pending = [3, 4, 5]
    async with draft_stream(drafter.address, sampling=sampling, mode=mode) as stream:
        await stream.advance(PROMPT, pending=pending, for_cycle=9, max_outcomes=6)
        outcomes, blocks = await answer(stream)
    assert len(outcomes) == 6
    for block in blocks:
        async with draft_stream(drafter.address, sampling=sampling, mode=mode) as stream:
            await stream.advance([*PROMPT, *block.path_token_ids], for_cycle=9)
            alone = (await stream.read()).block
        assert list(alone.draft.token_ids) == list(block.draft.token_ids)
        assert [d.counts for d in alone.draft.distributions] == [
            d.counts for d in block.draft.distributions
        ]


async def test_drafts_for_all_outcomes_share_passes(drafter: Worker) -> None:
    async with draft_stream(drafter.address) as stream:
        before = drafter.engine.stats()
        await stream.advance(PROMPT, pending=[3, 4, 5], num_tokens=6, max_outcomes=8)
        _, blocks = await answer(stream)
        after = drafter.engine.stats()
    assert len(blocks) == 8
    # One pass over prompt and pending draft, then one a token; who arrives a moment later adds one.
    assert after.num_passes - before.num_passes <= 1 + 6 + 2
    assert after.num_rows - before.num_rows == len(PROMPT) + 3 + 8 * 6


async def test_answers_that_newer_advances_replace_end_once_each(drafter: Worker) -> None:
    async with draft_stream(drafter.address) as stream:
        cycles = [
            await stream.advance(PROMPT, pending=[1, 2], num_tokens=16, max_outcomes=8)
            for _ in range(5)
        ]
        ends = []
        while len(ends) < len(cycles):
            response = await stream.read()
            if response.block.last:
                ends.append(response.block.cycle)
        assert ends == cycles
        assert len(response.block.draft.token_ids) == 16
    await drafter.freed()


async def test_one_outcome_is_the_plain_answer(drafter: Worker) -> None:
    async with draft_stream(drafter.address) as stream:
        for num in (0, 1):
            await stream.advance(PROMPT, pending=[1, 2], max_outcomes=num)
            block = (await stream.read()).block
            assert block.last
            assert list(block.path_token_ids[:-1]) == [1, 2]


async def test_too_many_outcomes_are_refused_by_name(drafter: Worker) -> None:
    async with draft_stream(drafter.address) as stream:
        await stream.advance(PROMPT, pending=[1, 2], max_outcomes=MAX_OUTCOMES + 1)
        with pytest.raises(grpc.aio.AioRpcError, match=r"advance\.max_outcomes: 33 is above 32"):
            await stream.read()
        assert await stream.call.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_at_the_end_of_the_context_there_is_nothing_to_prepare(drafter: Worker) -> None:
    """The toy's context has 128 positions."""
    ids = [1 + n % 50 for n in range(125)]
    async with draft_stream(drafter.address) as stream:
        for pending in ([7], [7, 8], [7, 8, 9]):
            await stream.advance(ids, pending=pending, max_outcomes=4)
            _, blocks = await answer(stream)
            for block in blocks:
                num = len(block.path_token_ids) + len(block.draft.token_ids)
                assert len(ids) + num <= 128
