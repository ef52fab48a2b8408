"""Greedy output is the target's own, token for token, whatever was drafted."""

import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from drafter_svc.settings import DrafterSettings
from outrider.sampling import SamplingParams
from tests.integration.scripted import GUESSES
from tests.integration.stage import Stage, assert_parity, open_stage, together
from verifier_svc.settings import VerifierSettings

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

VOCAB_SIZE = 512
SHORT = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
LENGTHS = range(1, 9)  # K


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(toy: Path, other: Path) -> AsyncIterator[Stage]:
    targets = [
        VerifierSettings(model=str(toy), name=f"toy-{dtype}", dtype=dtype, num_threads=1)
        for dtype in ("float32", "bfloat16")
    ]
    draft_model = DrafterSettings(model=str(other), dtype="float32", num_threads=1)
    async with open_stage(targets, draft_model=draft_model) as opened:
        yield opened.of("toy-float32")


def random_prompts(num: int, lengths: range, *, seed: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randrange(VOCAB_SIZE) for _ in range(rng.choice(lengths))] for _ in range(num)]


async def check(stage: Stage, prompts: list[list[int]], cells: list[tuple[str, int]], sampling):
    """Play every prompt in every cell (drafter, K); returns the accepted tokens by cell."""
    plain = await together(*(stage.plain(prompt, sampling) for prompt in prompts))
    accepted = {}
    for drafter, num_draft_tokens in cells:
        outputs = await together(
            *(
                stage.speculated(
                    prompt, sampling, drafter=drafter, num_draft_tokens=num_draft_tokens
                )
                for prompt in prompts
            )
        )
        for prompt, output, expected in zip(prompts, outputs, plain, strict=True):
            assert_parity(output, expected, (prompt, drafter, num_draft_tokens))
        receipts = [output.complete.receipt for output in outputs]
        accepted[drafter, num_draft_tokens] = (
            sum(receipt.num_accepted_draft_tokens for receipt in receipts),
            sum(receipt.num_draft_tokens for receipt in receipts),
        )
    return accepted


def assert_drafters_did_their_parts(accepted: dict[tuple[str, int], tuple[int, int]]) -> None:
    for (drafter, num_draft_tokens), (num_accepted, num_drafted) in accepted.items():
        assert num_drafted > 0, (drafter, num_draft_tokens)
        if drafter == "oracle":
            assert num_accepted == num_drafted
        elif drafter == "wrong":
            assert num_accepted == 0
        elif drafter == "alt" and num_draft_tokens > 1:
            assert 0 < num_accepted < num_drafted


async def test_a_single_token_prompt_speculates_like_plain_decoding(stage: Stage):
    """Case 01: every id of the vocabulary alone."""
    prompts = [[token_id] for token_id in range(VOCAB_SIZE)]
    accepted = await check(stage, prompts, [("alt", 4)], SHORT)
    assert_drafters_did_their_parts(accepted)


@pytest.mark.parametrize("drafter", [*GUESSES, "model", "ngram"])
async def test_a_prompt_of_up_to_three_tokens_speculates_like_plain_decoding(
    stage: Stage, drafter: str
):
    """Case 01: every drafter and draft length on a sample of short prompts."""
    prompts = [
        *random_prompts(4, range(1, 2), seed=1),
        *random_prompts(4, range(2, 3), seed=2),
        *random_prompts(4, range(3, 4), seed=3),
    ]
    accepted = await check(stage, prompts, [(drafter, k) for k in LENGTHS], SHORT)
    if drafter in GUESSES:
        assert_drafters_did_their_parts(accepted)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_a_long_greedy_output_does_not_drift(stage: Stage, dtype: str):
    """Case 02: rows of a block, of a batch and alone have the same bits, so no near tie flips."""
    numerics = {worker.identity.name: worker.identity.numerics for worker in stage.cluster.workers}
    assert numerics[f"toy-{dtype}"].dtype == dtype
    if not numerics[f"toy-{dtype}"].row_invariant:
        pytest.skip(
            "without the native kernels rows depend on their batch, and the identity says so"
        )
    prompts = random_prompts(8, range(1, 60), seed=4)
    sampling = SamplingParams(temperature=0.0, max_tokens=128, ignore_eos=True)
    cells = [("alt", 5), ("model", 4)]
    accepted = await check(stage.of(f"toy-{dtype}"), prompts, cells, sampling)
    assert all(num_accepted > 0 for num_accepted, _ in accepted.values())


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_two_hundred_long_greedy_outputs_do_not_drift(stage: Stage):
    """Case 02: the full measure, 200 prompts and 128 tokens of each."""
    prompts = random_prompts(200, range(1, 100), seed=5)
    sampling = SamplingParams(temperature=0.0, max_tokens=128, ignore_eos=True)
    await check(stage, prompts, [("alt", 4)], sampling)
