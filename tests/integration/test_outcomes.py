"""Drafting ahead for several outcomes changes how often a draft is ready, and nothing else."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from drafter_svc.settings import DrafterSettings
from outrider.client import Output, generate_request
from outrider.sampling import AcceptanceRule, SamplingParams
from tests.integration.stage import Stage, assert_parity, open_stage, together
from tests.integration.test_draft_sources import save_drafter
from verifier_svc.settings import VerifierSettings

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

GREEDY = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
SAMPLED = SamplingParams(temperature=1.0, max_tokens=40, seed=11, ignore_eos=True)
PROMPTS = [[20 + 7 * n, 300 + n, 5, 60 + n, 20 + 7 * n, 300 + n, 5] * 2 for n in range(8)]
hit_rates: dict[SamplingParams, float] = {}
"""With one outcome, of the source "model"."""
SOURCES = ("parallel", "parallel-tree", "ngram", "suffix", "recycling")


@pytest.fixture(scope="module")
def drafter(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_drafter(toy, tmp_path_factory.mktemp("outcomes"))


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=[1, 4])
async def stage(
    request: pytest.FixtureRequest, toy: Path, drafter: Path
) -> AsyncIterator[tuple[Stage, int]]:
    target = VerifierSettings(model=str(toy), dtype="float32", num_threads=1)
    draft_model = DrafterSettings(model=str(drafter), dtype="float32", num_threads=1)
    async with open_stage(
        [target], draft_model=draft_model, max_outcomes=request.param, lookup_on_miss=False
    ) as opened:
        yield opened, request.param


def blocks(outputs: list[Output]) -> dict[str, int]:
    """Add up what came of the drafters' blocks."""
    found: dict[str, int] = {}
    for output in outputs:
        for each in output.complete.receipt.draft_blocks:
            found[each.reason] = found.get(each.reason, 0) + each.count
    return found


async def play(stage: Stage, source: str, sampling: SamplingParams) -> list[Output]:
    """Play two prompts alone, then eight at once; all as without drafts. Returns the eight."""
    plain = await together(*(stage.plain(prompt, sampling) for prompt in PROMPTS))

    def speculated(index: int, salt: str):
        return stage.speculated(
            PROMPTS[index], sampling, drafter=source, num_draft_tokens=3, salt=f"{salt} {source}"
        )

    alone = [await speculated(index, f"alone {index}") for index in (0, 1)]
    crowd = await together(*(speculated(index, f"crowd {index}") for index in range(8)))
    for output, index in zip((*alone, *crowd), (0, 1, *range(8)), strict=True):
        assert_parity(output, plain[index], (source, index))
        assert output.complete.receipt.num_ledger_heals == 0
    return crowd


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "coupled"])
async def test_a_model_hits_more_often_and_says_the_same(
    stage: tuple[Stage, int], sampling: SamplingParams
):
    opened, num_outcomes = stage
    counted = blocks(await play(opened, "model", sampling))
    hits = counted.get("hit", 0)
    rate = hits / (hits + counted.get("miss", 0) + counted.get("late", 0))
    assert counted["stale"] > 0, "outcomes that did not happen are counted"
    if num_outcomes == 1:
        hit_rates[sampling] = rate
    elif sampling in hit_rates:
        assert rate > 1.2 * hit_rates[sampling], (rate, hit_rates)


@pytest.mark.parametrize("stage", [4], indirect=True)
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "coupled"])
async def test_alone_and_eight_at_once_as_without_drafts(
    stage: tuple[Stage, int], source: str, sampling: SamplingParams
):
    await play(stage[0], source, sampling)


@pytest.mark.parametrize("stage", [4], indirect=True)
@pytest.mark.parametrize("rule", [AcceptanceRule.REJECTION, AcceptanceRule.BLOCK])
@pytest.mark.parametrize("source", ["model", "parallel"])
async def test_ratio_uses_blocks_that_were_drawn_for_its_outcome(
    stage: tuple[Stage, int], source: str, rule: AcceptanceRule
):
    outputs = []
    for seed in range(4):
        request = generate_request(
            PROMPTS[seed],
            replace(SAMPLED, seed=seed),
            sources=[source],
            num_draft_tokens=3,
            acceptance_rule=rule,
        )
        outputs.append(await stage[0].client.generate(request, timeout_s=50))
    for output in outputs:
        receipt = output.complete.receipt
        assert receipt.num_draft_tokens > 0
        assert not any("invalid" in each.reason for each in receipt.fallbacks)
        assert len(output.token_ids) == 40
    assert blocks(outputs)["hit"] > 0
