"""A seed fixes the output whatever else runs; without a seed every request draws its own."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from drafter_svc.settings import DrafterSettings
from outrider.sampling import SamplingParams
from tests.integration.stage import Stage, assert_parity, open_stage, together
from verifier_svc.settings import VerifierSettings

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

PROMPT = [5, 300, 17, 204]
HOT = SamplingParams(temperature=1.5, max_tokens=32, seed=42, ignore_eos=True)
# Two ids at almost equal odds: six tokens are one of 64 outputs.
COIN = SamplingParams(temperature=100.0, top_k=2, max_tokens=6, ignore_eos=True)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(toy: Path, other: Path) -> AsyncIterator[Stage]:
    target = VerifierSettings(model=str(toy), dtype="float32", num_threads=1)
    draft_model = DrafterSettings(model=str(other), dtype="float32", num_threads=1)
    async with open_stage([target], draft_model=draft_model) as opened:
        yield opened


@pytest.mark.parametrize(
    ("drafter", "num_times"), [("oracle", 5), ("alt", 5), ("wrong", 2), ("model", 2), ("ngram", 2)]
)
async def test_a_seed_gives_one_output_alone_and_in_company(
    stage: Stage, drafter: str, num_times: int
):
    """Case 11: some times alone, and as often beside seven other streams."""
    everyone = [HOT, *(replace(HOT, seed=seed) for seed in range(7))]
    plain = await together(*(stage.plain(PROMPT, each) for each in everyone))
    for _ in range(num_times):
        alone = await stage.speculated(PROMPT, HOT, drafter=drafter)
        assert_parity(alone, plain[0])
        beside = await together(
            *(stage.speculated(PROMPT, each, drafter=drafter) for each in everyone)
        )
        for output, expected, each in zip(beside, plain, everyone, strict=True):
            assert_parity(output, expected, each.seed)
            assert output.complete.receipt.seed == each.seed
    assert len({tuple(output.token_ids) for output in plain}) == len(everyone)


async def test_requests_without_a_seed_draw_one_each(stage: Stage):
    """Case 13: as many different outputs as independent draws give.

    100 draws of 64 equally likely outputs give 50.7 different ones on average, deviation 2.6; the
    bounds are five deviations away and leave room for odds that are not quite equal.
    """
    outputs = [await stage.plain(PROMPT, COIN) for _ in range(100)]
    assert 36 <= len({tuple(output.token_ids) for output in outputs}) <= 64
    seeds = [output.complete.receipt.seed for output in outputs]
    assert len(set(seeds)) == len(seeds)
    again = await stage.plain(PROMPT, replace(COIN, seed=seeds[0]))
    assert again.token_ids == outputs[0].token_ids


async def test_no_seed_is_a_marker_for_something_else(stage: Stage):
    """Case 13: the seeds next to 0 and at the edge of 64 bits are seeds like any other."""
    seeds = (7, -2, -1, 0, 1, 2**63 - 1, -(2**63))
    plain = await together(*(stage.plain(PROMPT, replace(HOT, seed=seed)) for seed in seeds))
    assert len({tuple(output.token_ids) for output in plain}) == len(seeds)
    for drafter in ("oracle", "alt", "ngram"):
        repeated = await together(
            *(stage.speculated(PROMPT, replace(HOT, seed=seed), drafter=drafter) for seed in seeds)
        )
        for seed, output, expected in zip(seeds, repeated, plain, strict=True):
            assert_parity(output, expected, (seed, drafter))
            assert output.complete.receipt.seed == seed
