"""Draft lengths that are chosen: a useless or slow drafter is left alone, a good one gets more.

Nothing here asserts a time; what is counted follows from times that are far apart.
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from bench.sleeping import SleepingSettings, open_sleeping
from orchestrator.draft_length import NUM_WARM_UP, START
from orchestrator.off_switch import NUM_BEFORE_OFF
from outrider.client import Output, generate_request
from outrider.sampling import AcceptanceRule, SamplingParams
from tests.cluster import Cluster, cluster
from tests.integration.stage import ANSWER_S, GREEDY, Stage, assert_parity, fallbacks, open_stage
from tests.integration.test_measures import Samples, read
from tests.scrape import free_port
from tests.statistical.law import TableLaw
from tests.table_model import VOCAB_SIZE, table_drafter, table_verifier
from verifier_svc.settings import VerifierSettings

pytestmark = pytest.mark.integration

NUM_TOKENS = 120
PROMPT = [7, 77, 177]
LONG = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
SAMPLED = SamplingParams(temperature=1.0, max_tokens=NUM_TOKENS, ignore_eos=True, seed=3)
# Warm-up, the cycles that the switch counts, lengths that are tried meanwhile, probes behind it.
MOST_WITH_DRAFTS = NUM_WARM_UP + NUM_BEFORE_OFF + 24
PORT = free_port()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(toy: Path) -> AsyncIterator[Stage]:
    settings = VerifierSettings(model=str(toy), dtype="float32", num_threads=1)
    async with open_stage(
        [settings], num_draft_tokens="auto", max_draft_tokens=8, metrics_port=PORT
    ) as opened:
        yield opened


def lengths(output: Output) -> dict[int, int]:
    """Cycles by the draft tokens that they asked for."""
    histogram = output.complete.receipt.draft_lengths.histogram
    return {length: count for length, count in enumerate(histogram) if count}


def reasons(output: Output) -> dict[str, int]:
    return {each.reason: each.count for each in output.complete.receipt.draft_lengths.reasons}


async def automatic(stage: Stage, drafter: str, sampling: SamplingParams, **more: object) -> Output:
    request = generate_request(PROMPT, sampling, model=stage.model, sources=[drafter], **more)  # type: ignore[arg-type]
    return await stage.client.generate(request, timeout_s=ANSWER_S)


def assert_adds_up(output: Output) -> None:
    """One choice a cycle behind the prefill, but where a single token was left."""
    without = sum(fallbacks(output).get(reason, 0) for reason in ("prefill", "near_the_end"))
    assert sum(lengths(output).values()) == len(output.chunks) - without
    assert sum(reasons(output).values()) == sum(lengths(output).values())


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("sampling", [LONG, SAMPLED])
async def test_a_useless_drafter_is_switched_off_and_that_can_be_seen(
    stage: Stage, sampling: SamplingParams
):
    plain = await stage.plain(PROMPT, sampling)
    output = await automatic(stage, "wrong", sampling)
    assert_parity(output, plain)
    assert_adds_up(output)
    with_drafts = sum(count for length, count in lengths(output).items() if length)
    assert with_drafts <= MOST_WITH_DRAFTS
    assert output.complete.receipt.num_spec_steps <= with_drafts
    assert reasons(output)["switched_off"] == fallbacks(output)["switched_off"] >= 20
    assert output.complete.receipt.draft_lengths.predicted_gain < 1.03
    samples = await read_of(stage)
    assert samples["draft_source_on", ("wrong",)] == 0
    assert samples["draft_length", ("wrong",)] == 0
    assert samples["draft_length_gain", ("wrong",)] < 1.03
    assert samples["draft_length_choices_total", ("switched_off",)] >= 20


async def read_of(stage: Stage) -> Samples:
    """The measures of the stage's orchestrator; they name its model."""
    return await read(PORT, stage.model)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("sampling", [LONG, SAMPLED])
@pytest.mark.parametrize("drafter", ["oracle", "alt", "ngram"])
async def test_whatever_length_is_chosen_the_output_is_the_targets(
    stage: Stage, sampling: SamplingParams, drafter: str
):
    plain = await stage.plain(PROMPT, sampling)
    output = await automatic(stage, drafter, sampling)
    assert_parity(output, plain)
    assert_adds_up(output)
    assert max(lengths(output)) <= 8


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(("fewest", "most"), [(1, 2), (3, 3), (6, 8)])
async def test_a_request_s_range_is_kept_and_told(stage: Stage, fewest: int, most: int):
    plain = await stage.plain(PROMPT, LONG)
    output = await automatic(
        stage, "oracle", LONG, min_draft_tokens=fewest, max_draft_tokens=most, cache_salt="range"
    )
    assert_parity(output, plain)
    assert_adds_up(output)
    assert set(lengths(output)) <= {0, *range(fewest, most + 1)}
    assert max(lengths(output)) >= fewest, "some cycle drafted"
    decision = output.complete.receipt.decision
    assert (
        decision == f"on; at least {fewest} and at most {most} draft tokens, as the request asked"
    )
    # No draft that was verified is longer; the last cycles have less room.
    receipt = output.complete.receipt
    assert receipt.num_draft_tokens <= most * receipt.num_spec_steps


@pytest.mark.asyncio(loop_scope="module")
async def test_a_request_that_names_a_length_gets_it_where_the_source_is_off(stage: Stage):
    plain = await stage.plain(PROMPT, GREEDY)
    await automatic(stage, "wrong", LONG)
    output = await automatic(stage, "wrong", GREEDY, num_draft_tokens=3)
    assert_parity(output, plain)
    assert reasons(output).keys() == {"fixed"}
    assert lengths(output).keys() == {3}


@pytest.mark.asyncio(loop_scope="module")
async def test_target_only_chooses_nothing(stage: Stage):
    plain = await stage.plain(PROMPT, GREEDY)
    assert not plain.complete.receipt.HasField("draft_lengths")


def sleeping(role: str, **settings: object):
    made = SleepingSettings(role=role, **settings)  # type: ignore[arg-type]
    return lambda: open_sleeping(made)


async def answer(services: Cluster, num_tokens: int, **more: object) -> Output:
    sampling = SamplingParams(temperature=0.0, max_tokens=num_tokens)
    request = generate_request([1, 2, 3], sampling, **more)  # type: ignore[arg-type]
    return await services.client.generate(request, timeout_s=ANSWER_S)


async def test_a_good_drafter_gets_the_longest_drafts():
    """Case 40. Rows cost nothing, and a draft is there before it is needed."""
    async with cluster(
        num_draft_tokens="auto",
        verifiers=[sleeping("verifier", compute_ms=15.0)],
        drafters=[sleeping("drafter", compute_ms=1.0)],
        max_draft_tokens=16,
        draft_wait_ms=10_000,
    ) as services:
        warm = await answer(services, 300, sources=["model"])
        output = await answer(services, 300, sources=["model"])
    assert warm.complete.receipt.draft_lengths.histogram[START] >= NUM_WARM_UP
    counts = lengths(output)
    assert counts[16] == max(counts.values())
    assert max(counts) == 16
    assert output.complete.receipt.draft_lengths.predicted_gain > 5


async def test_a_drafter_that_takes_50_ms_is_not_waited_for_once_it_does_not_pay():
    """Cases 40 and 41: it is right, but a pass is over long before."""
    async with cluster(
        num_draft_tokens="auto",
        verifiers=[sleeping("verifier", compute_ms=2.0)],
        drafters=[sleeping("drafter", compute_ms=50.0)],
        max_draft_tokens=1,
        draft_wait_ms=1000,
        lookup_on_miss=False,
    ) as services:
        plain = await answer(services, 200, target_only=True)
        first = await answer(services, 200, sources=["model"])
        later = await answer(services, 200, sources=["model"])
    assert first.token_ids == later.token_ids == plain.token_ids
    assert lengths(first)[1] <= MOST_WITH_DRAFTS
    assert reasons(first)["switched_off"] > 50
    # A probe is four cycles; the first ones come every 40.
    assert lengths(later).get(1, 0) <= 4 * (200 // 40 + 1)
    assert lengths(later)[0] > 150


@pytest.mark.parametrize("rule", [AcceptanceRule.BLOCK, AcceptanceRule.REJECTION])
async def test_in_ratio_blocks_of_chosen_lengths_are_used_whole(rule: AcceptanceRule):
    """Whether the law holds is another test's; here no block was cut, dropped or redrawn."""
    target = TableLaw.random(VOCAB_SIZE, seed=3)
    draft = TableLaw(target.logits + TableLaw.random(VOCAB_SIZE, seed=4, scale=0.6).logits)
    async with cluster(
        num_draft_tokens="auto",
        verifiers=[table_verifier(target)],
        drafters=[table_drafter(draft)],
        draft_wait_ms=10_000,
        lookup_on_miss=False,
    ) as services:
        chosen: set[int] = set()
        for seed in range(4):
            sampling = SamplingParams(temperature=1.0, max_tokens=60, seed=seed)
            request = generate_request([1, 2], sampling, sources=["model"], acceptance_rule=rule)
            output = await services.client.generate(request, timeout_s=ANSWER_S)
            assert output.complete.receipt.rule == rule.value
            assert not {"draft_too_long", "invalid_draft", "trimmed"} & fallbacks(output).keys()
            assert_adds_up(output)
            chosen |= lengths(output).keys()
    assert len(chosen) > 1, "lengths did change"


@pytest.mark.asyncio(loop_scope="module")
async def test_drafts_give_way_while_a_higher_priority_runs_and_the_receipt_says_so(stage: Stage):
    plain = await stage.plain(PROMPT, LONG)
    protected = asyncio.create_task(
        automatic(stage, "oracle", replace(LONG, max_tokens=4 * NUM_TOKENS), priority=7)
    )
    await asyncio.sleep(0)
    beside = await automatic(stage, "oracle", LONG, num_draft_tokens=8)
    assert_parity(beside, plain)
    assert reasons(beside)["gave_way"] > 0
    assert max(lengths(beside)) <= 8
    assert "gave_way" not in reasons(await protected)
    alone = await automatic(stage, "oracle", LONG, num_draft_tokens=8)
    assert "gave_way" not in reasons(alone)
