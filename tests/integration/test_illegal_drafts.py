"""Whatever a drafter says, the output is the target's and everybody else goes on."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from outrider.sampling import SamplingParams
from tests.integration.rogue import FATAL, HARMLESS, INVALID, VOCAB_SIZE, open_rogue
from tests.integration.scripted import GUESSES, Book, script
from tests.integration.stage import Stage, assert_parity, fallbacks, open_stage, together
from verifier_svc.settings import VerifierSettings

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

PROMPT, NEIGHBOUR = [50, 60, 70], [80, 90]
GREEDY = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
SAMPLED = replace(GREEDY, temperature=1.2, seed=11)
K = 4
SCRIPTS = {
    "script_vocab_size": script([VOCAB_SIZE]),
    "script_int32": script([2**31 - 1]),
    "script_uint32": script([2**32 - 1]),
    "script_now_and_then": script([1, 2, VOCAB_SIZE, 3]),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(toy: Path) -> AsyncIterator[Stage]:
    target = VerifierSettings(model=str(toy), dtype="float32", num_threads=1)
    rogues = Book()
    async with open_stage(
        [target],
        drafters=[lambda: open_rogue(rogues)],
        guesses={**GUESSES, **SCRIPTS, "too_long": GUESSES["oracle"]},
        excess={"too_long": 20},
    ) as opened:
        for params in (GREEDY, SAMPLED):
            # One token more than is asked for: drafts are cut by the orchestrator, not by chance.
            plain = await opened.plain(PROMPT, replace(params, max_tokens=40))
            rogues.learn(PROMPT, plain.token_ids, key=params.seed or 0)
            await opened.plain(NEIGHBOUR, replace(params, max_tokens=40))
        yield opened


async def play(stage: Stage, trick: str) -> list:
    """Return the outputs of a greedy and a sampled request, both equal to the target's own.

    A neighbour runs beside them with honest drafts, and afterwards all is as it was.
    """
    plain = [await stage.plain(PROMPT, params) for params in (GREEDY, SAMPLED)]
    undisturbed = await stage.plain(NEIGHBOUR, GREEDY)
    greedy, sampled, beside = await together(
        stage.speculated(PROMPT, GREEDY, drafter=trick, num_draft_tokens=K),
        stage.speculated(PROMPT, SAMPLED, drafter=trick, num_draft_tokens=K),
        stage.speculated(NEIGHBOUR, GREEDY, drafter="oracle", num_draft_tokens=K),
    )
    assert_parity(greedy, plain[0])
    assert_parity(sampled, plain[1])
    assert_parity(beside, undisturbed)
    assert beside.complete.receipt.draft_acceptance_rate == 1.0
    assert_parity(await stage.plain(NEIGHBOUR, GREEDY), undisturbed)
    for output in (greedy, sampled):
        assert output.complete.receipt.num_failovers == 0
    return [greedy, sampled]


@pytest.mark.parametrize("trick", INVALID)
async def test_an_invalid_draft_counts_as_none(stage: Stage, trick: str):
    """Case 31: ids out of range and distributions that are none, on the wire as they are."""
    for output in await play(stage, trick):
        receipt = output.complete.receipt
        assert fallbacks(output)["invalid_draft"] >= 1
        # No draft was usable, so every token took its own pass.
        assert receipt.num_draft_tokens == receipt.num_accepted_draft_tokens == 0
        assert receipt.num_target_passes == len(output.token_ids)


@pytest.mark.parametrize("trick", HARMLESS)
async def test_a_senseless_answer_does_no_harm(stage: Stage, trick: str):
    """Case 31: lists too long or empty, unknown requests, lies about caches and paths."""
    for output in await play(stage, trick):
        receipt = output.complete.receipt
        assert "invalid_draft" not in fallbacks(output)
        assert receipt.num_draft_tokens <= K * receipt.num_spec_steps


async def test_lies_about_the_cache_do_not_spoil_good_drafts(stage: Stage):
    """Case 31: what a drafter states of its cache only decides which ids it is sent."""
    for trick in ("cache_longer_than_the_sequence", "cache_lost", "longer_than_asked"):
        for output in await play(stage, trick):
            assert output.complete.receipt.num_accepted_draft_tokens > 0


@pytest.mark.parametrize("trick", FATAL)
async def test_a_stream_that_breaks_leaves_the_request_without_drafts(stage: Stage, trick: str):
    """Case 31: bytes that are no message end the drafter's stream and nothing else."""
    for output in await play(stage, trick):
        assert output.complete.receipt.num_draft_tokens == 0
        assert fallbacks(output)["drafter_lost"] >= 1


@pytest.mark.parametrize("drafter", [*SCRIPTS, "too_long"])
async def test_an_illegal_script_behind_the_real_service_does_no_harm(stage: Stage, drafter: str):
    """Case 31: the same through the real drafter service, whose source goes wrong."""
    for output in await play(stage, drafter):
        receipt = output.complete.receipt
        assert receipt.num_draft_tokens <= K * receipt.num_spec_steps
        if drafter == "too_long":
            assert receipt.draft_acceptance_rate == 1.0
        else:
            assert fallbacks(output)["invalid_draft"] >= 1


async def test_a_drafter_that_talks_nonsense_again_and_again_is_left_alone(toy: Path):
    """After three invalid drafts in a row nobody asks it any more, in other requests either."""
    target = VerifierSettings(model=str(toy), dtype="float32", num_threads=1)
    rogues = Book()
    async with open_stage(
        [target], drafters=[lambda: open_rogue(rogues)], max_worker_failures=3
    ) as opened:
        plain = await opened.plain(PROMPT, replace(GREEDY, max_tokens=40))
        rogues.learn(PROMPT, plain.token_ids)
        params = replace(GREEDY, max_tokens=24)
        first, second = [
            await opened.speculated(PROMPT, params, drafter="largest_int32") for _ in range(2)
        ]
    for output in (first, second):
        assert output.token_ids == plain.token_ids[:24]
    assert fallbacks(first)["invalid_draft"] == 3
    assert fallbacks(first)["drafter_suspect"] == 1
    assert fallbacks(second).get("invalid_draft", 0) == 0
    assert fallbacks(second)["no_drafter"] > 10
