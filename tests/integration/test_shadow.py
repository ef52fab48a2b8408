"""Drafts that are only judged: the output and the verifier's work are those of target-only, and
what is estimated is what drafts do where they are used."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from drafter_svc.servicer import DrafterServicer
from drafter_svc.settings import DrafterSettings
from orchestrator.estimates import VerifyCost
from outrider.client import Output, collect, generate_request
from outrider.receipts import disagreements
from outrider.sampling import SamplingParams
from outrider.v1 import drafter_pb2
from outrider.v1 import generation_pb2 as pb
from tests.cluster import cluster
from tests.integration.recording import CHAIN, TREE, open_recording, recording_sources
from tests.integration.scripted import Book
from tests.integration.stage import ANSWER_S, Stage, facts, open_stage
from tests.integration.test_draft_sources import save_drafter
from tests.statistical.law import TableLaw
from tests.table_model import VOCAB_SIZE, table_drafter, table_verifier
from verifier_svc.settings import VerifierSettings

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

GREEDY = SamplingParams(temperature=0.0, max_tokens=48, ignore_eos=True)
COUPLED = SamplingParams(temperature=1.0, max_tokens=48, seed=11, ignore_eos=True)
PROMPT = [20, 300, 5, 60, 20, 300, 5, 60, 20, 300, 5]
POLICY = """
version: test
metadata: [x-class]
classes:
  - {name: used, when: {metadata: {x-class: used}}, speculation: on, lookup: false,
     draft_tokens: 3, draft_wait_ms: 10000}
  - {name: judged, when: {metadata: {x-class: judged}}, speculation: shadow, lookup: false,
     draft_tokens: 3, draft_wait_ms: 10000, shadow: {max_slowdown: 1.0}}
  - {name: looked-up, when: {metadata: {x-class: looked-up}}, speculation: shadow, draft_tokens: 3,
     sources: none}
  - {name: nobody, when: {metadata: {x-class: nobody}}, speculation: shadow, sources: none,
     lookup: false}
  - {name: seldom, when: {metadata: {x-class: seldom}}, speculation: shadow, shadow: {share: 0}}
"""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    folder = tmp_path_factory.mktemp("shadow")
    policy = folder / "policy.yaml"
    policy.write_text(POLICY)
    target = VerifierSettings(model=str(toy), dtype="float32", num_threads=1)
    draft_model = DrafterSettings(
        model=str(save_drafter(toy, folder)), dtype="float32", num_threads=1
    )
    async with open_stage(
        [target],
        draft_model=draft_model,
        policy=policy,
        num_draft_tokens="auto",
        draft_wait_ms=100.0,
    ) as opened:
        yield opened


async def play(
    stage: Stage,
    workload_class: str,
    sampling: SamplingParams,
    source: str = "",
) -> Output:
    request = generate_request(
        PROMPT,
        sampling,
        sources=[source] if source else [],
        cache_salt=f"{workload_class} {source} {sampling.temperature}",
    )
    metadata = (("x-class", workload_class),)
    call = stage.client.stub.Generate(request, timeout=ANSWER_S, metadata=metadata)
    output = collect([response async for response in call])
    assert not disagreements(output.complete.receipt)
    return output


def assert_untouched(judged: Output, plain: Output) -> pb.ShadowResults:
    """The same output by the same steps, and no draft among them."""
    assert facts(judged) == facts(plain)
    receipt, expected = judged.complete.receipt, plain.complete.receipt
    assert {origin for chunk in judged.chunks for origin in chunk.origins} == {pb.TOKEN_ORIGIN_ONLY}
    assert receipt.num_target_passes == expected.num_target_passes
    assert receipt.min_decision_margin == expected.min_decision_margin
    assert receipt.num_spec_steps == receipt.num_draft_tokens == receipt.num_passes_saved == 0
    assert receipt.decision == receipt.policy.speculation == "shadow"
    return receipt.shadow


@pytest.mark.parametrize("sampling", [GREEDY, COUPLED], ids=["greedy", "coupled"])
@pytest.mark.parametrize("source", ["oracle", "alt", "wrong", "model", "ngram", "recycling"])
async def test_what_is_estimated_is_what_drafts_do(
    stage: Stage, source: str, sampling: SamplingParams
):
    """Cycle by cycle: the drafter's drafts depend on the text alone, and are waited for."""
    plain = await stage.plain(PROMPT, sampling)
    used = await play(stage, "used", sampling, source)
    judged = await play(stage, "judged", sampling, source)
    assert facts(used) == facts(plain)
    shadow = assert_untouched(judged, plain)
    assert shadow.judged_by == "output"
    assert shadow.num_covered_tokens >= 8, "a drafter that is waited for falls behind"
    runs = [len(chunk.token_ids) for chunk in used.chunks][: shadow.num_cycles]
    assert shadow.num_covered_tokens == sum(runs)
    assert shadow.num_accepted_draft_tokens == shadow.num_passes_saved == sum(runs) - len(runs)
    accepted = Counter(run - 1 for run in runs[1:])
    accepted[0] -= len(runs) - 1 - shadow.num_spec_steps  # cycles without a draft
    assert +accepted == +Counter(dict(enumerate(shadow.acceptance_histogram)))
    assert set(shadow.drafts_by_source) <= {source}
    if source in ("oracle", "alt", "wrong"):
        assert shadow.num_spec_steps == shadow.num_cycles - 1
        rates = {"oracle": 1.0, "wrong": 0.0}
        assert shadow.draft_acceptance_rate == rates.get(source, shadow.draft_acceptance_rate)
    if source == "model":
        assert shadow.num_draft_tokens > 0
    assert shadow.target_only_ms > 0


TARGET = TableLaw.random(VOCAB_SIZE, seed=3)
DRAFT = TableLaw(TARGET.logits + TableLaw.random(VOCAB_SIZE, seed=4, scale=0.3).logits)


@pytest.mark.parametrize(("rule", "room"), [("block", 64), ("rejection", 64), ("block", 0)])
async def test_in_ratio_drafts_are_judged_where_the_pass_has_room(
    rule: str, room: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Passes are slow here, so that drafts behind a guess that was right are there in time."""
    monkeypatch.setattr(VerifyCost, "rows_within", lambda cost, share: room)
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "version: 1\nclasses:\n- {name: judged, speculation: shadow, draft_tokens: 3, "
        f"acceptance_rule: {rule}, lookup: false}}\n"
    )
    sampling = SamplingParams(temperature=0.7, max_tokens=24, seed=2, ignore_eos=True)
    request = generate_request([1, 2], sampling)
    async with cluster(
        verifiers=[table_verifier(TARGET, gather_s=0.04)],
        drafters=[table_drafter(DRAFT)],
        policy=policy,
        num_draft_tokens="auto",
    ) as services:
        judged = await services.client.generate(request, timeout_s=ANSWER_S)
        request.speculation.target_only = True
        plain = await services.client.generate(request, timeout_s=ANSWER_S)
    shadow = assert_untouched(judged, plain)
    assert not disagreements(judged.complete.receipt)
    assert shadow.judged_by == "pass"
    reasons = {each.reason: each.count for each in shadow.fallbacks}
    if room:
        assert shadow.num_accepted_draft_tokens > 0
        assert "no_room_in_pass" not in reasons
    else:
        assert shadow.num_spec_steps == 0
        assert reasons["no_room_in_pass"] > 0


async def test_the_orchestrators_own_lookup_is_judged_as_well(stage: Stage):
    few = replace(GREEDY, allowed_token_ids=(5, 60, 300))  # they come again
    plain = await stage.plain(PROMPT, few)
    shadow = assert_untouched(await play(stage, "looked-up", few), plain)
    assert shadow.drafts_by_source.keys() == {"lookup"}


async def test_outside_the_share_nothing_is_judged(stage: Stage):
    receipt = (await play(stage, "seldom", GREEDY)).complete.receipt
    assert receipt.decision == "outside_shadow_share"
    assert not receipt.HasField("shadow")
    assert not receipt.HasField("drafter")


async def test_without_a_drafter_that_fits_nothing_is_judged(stage: Stage):
    plain = await stage.plain(PROMPT, GREEDY)
    output = await play(stage, "nobody", GREEDY)
    shadow = assert_untouched(output, plain)
    assert shadow.num_spec_steps == 0
    assert {"prefill", "no_drafter"} <= {each.reason for each in shadow.fallbacks}


class Silent(DrafterServicer):
    """Never has a draft."""

    async def _draft(self, *_: object) -> drafter_pb2.DraftResponse:
        await asyncio.sleep(60)
        raise AssertionError("nobody waits for this long")


async def test_nobody_waits_for_a_draft_that_is_only_judged(tmp_path: Path):
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "version: 1\nclasses:\n- {name: judged, speculation: shadow, draft_wait_ms: 10000}\n"
    )
    request = generate_request([1, 2], GREEDY)
    async with cluster(
        verifiers=[table_verifier(TARGET)],
        drafters=[table_drafter(DRAFT, servicer=Silent)],
        policy=policy,
        num_draft_tokens="auto",
    ) as services:
        output = await services.client.generate(request, timeout_s=ANSWER_S)
    receipt = output.complete.receipt
    assert len(output.token_ids) == GREEDY.max_tokens
    assert receipt.total_ms < 5_000, "one draft alone may be waited for twice as long"
    assert receipt.draft_ms == 0
    assert receipt.shadow.num_spec_steps == 0


@pytest.mark.parametrize("source", [CHAIN, TREE])
async def test_hidden_states_reach_a_drafter_that_is_only_judged(
    source: str, toy: Path, tmp_path: Path
):
    """Every position once, in order, and none before the virtual sequence has committed it."""
    policy = tmp_path / "policy.yaml"
    policy.write_text(
        "version: 1\nclasses:\n- {name: judged, speculation: shadow, draft_tokens: 4, "
        "draft_wait_ms: 10000}\n"
    )
    sources = recording_sources(Book(), (2, 0), 64)
    target = VerifierSettings(model=str(toy), dtype="float32", num_threads=1)
    async with open_stage(
        [target],
        drafters=[lambda: open_recording(sources)],
        policy=policy,
        num_draft_tokens="auto",
        draft_wait_ms=100.0,
    ) as opened:
        for each in sources:
            each.book = opened.book
        plain = await opened.plain(PROMPT, GREEDY)
        request = generate_request(PROMPT, GREEDY, sources=[source])
        judged = await opened.client.generate(request, timeout_s=ANSWER_S)
    shadow = assert_untouched(judged, plain)
    assert shadow.num_accepted_draft_tokens > 0
    assert {each.reason for each in shadow.fallbacks} <= {"prefill", "near_the_end"}
    (record,) = next(each.records for each in sources if each.name == source)
    assert len(record.positions) > len(PROMPT)
    assert record.positions == list(range(len(record.positions)))
    assert all(known == base - 1 for base, known in record.ends[1:])
