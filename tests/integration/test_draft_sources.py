"""Every way of drafting on one drafter: outputs stay the target's own, whoever runs beside them."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
import torch

from drafter_svc.settings import DrafterSettings
from outrider.checkpoints.pretrained import PretrainedConfig, assemble, save_pretrained
from outrider.client import generate_request
from outrider.engine import load_model
from outrider.hosting import UnusableModel
from outrider.identity.weights import weights_digest
from outrider.sampling import AcceptanceRule, SamplingParams
from outrider.v1 import generation_pb2 as pb
from tests.integration.stage import Stage, assert_parity, open_stage, together
from verifier_svc.__main__ import open_verifier
from verifier_svc.settings import VerifierSettings

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

NUM_PARALLEL = 3
COPIES = ("ngram", "suffix")
LOOKUP = "lookup"
TREES = ("recycling", "suffix+recycling")
MODELS = ("model", "parallel", "parallel-tree")
ALL = "suffix+recycling+parallel-tree"
LOOKAHEAD = "lookahead"
SOURCES = (*MODELS, *COPIES, *TREES, *(f"suffix+{name}" for name in MODELS), ALL, LOOKAHEAD)
GREEDY = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
SAMPLED = SamplingParams(temperature=1.0, max_tokens=24, seed=11, ignore_eos=True)
# Each repeats a word of its own, so that there is something to copy.
PROMPTS = [[20 + 7 * n, 300 + n, 5, 60 + n, 20 + 7 * n, 300 + n, 5] * 2 for n in range(8)]
DRAFT_IDS = tuple(i for i in range(512) if i % 8)


def save_drafter(target: Path, folder: Path) -> Path:
    """Make a parallel draft model: the target's layers, a little off, and a drawn mask token."""
    torch.manual_seed(5)
    module = load_model(str(target), dtype="float32").module
    layers = {
        name: value + 0.02 * torch.randn_like(value) * value.std() if value.dim() == 2 else value
        for name, value in module.get_decoder().state_dict().items()
        if "embed" not in name
    }
    config = PretrainedConfig((0, 1), NUM_PARALLEL, DRAFT_IDS, weights_digest(target))
    save_pretrained(folder / "trained", config, layers, mask_embedding=torch.randn(64) * 0.25)
    return assemble(target, folder / "trained", folder / "assembled")


@pytest.fixture(scope="module")
def drafter(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_drafter(toy, tmp_path_factory.mktemp("drafter"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(toy: Path, drafter: Path) -> AsyncIterator[Stage]:
    target = VerifierSettings(model=str(toy), dtype="float32", num_threads=1)
    draft_model = DrafterSettings(model=str(drafter), dtype="float32", num_threads=1)
    async with open_stage([target], draft_model=draft_model) as opened:
        yield opened


async def test_the_drafter_offers_them_all_the_parallel_one_first(stage: Stage):
    offered = [
        list(worker.sources)
        for worker in stage.cluster.workers
        if worker.role == "drafter" and "parallel" in worker.sources
    ]
    assert len(offered) == 1
    assert set(offered[0]) == set(SOURCES)
    assert offered[0][0] == "parallel"


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("num_draft_tokens", [1, 8])
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "coupled"])
async def test_alone_and_eight_at_once_as_without_drafts(
    stage: Stage, source: str, num_draft_tokens: int, sampling: SamplingParams
):
    """Cases 04 and 05: nothing passes from one request to another, and repeating changes
    nothing."""
    plain = await together(*(stage.plain(prompt, sampling) for prompt in PROMPTS))

    def speculated(index: int, salt: str):
        return stage.speculated(
            PROMPTS[index],
            sampling,
            drafter=source,
            num_draft_tokens=num_draft_tokens,
            salt=f"{salt} {source} {num_draft_tokens} {sampling.temperature}",
        )

    alone = [await speculated(index, f"alone {index}") for index in (0, 1, 0)]
    crowd = await together(*(speculated(index, f"crowd {index}") for index in range(8)))
    for output, index in zip((*alone, *crowd), (0, 1, 0, *range(8)), strict=True):
        assert_parity(output, plain[index], (source, index))
    num_drafted = sum(output.complete.receipt.num_draft_tokens for output in crowd)
    num_accepted = sum(output.complete.receipt.num_accepted_draft_tokens for output in crowd)
    if source == LOOKAHEAD:
        assert all(
            output.complete.receipt.num_draft_tokens <= 8 * len(output.token_ids)
            for output in crowd
        )
    elif source not in COPIES or sampling.is_greedy:
        assert num_drafted > 0
    if source in MODELS:
        assert num_accepted > 0
        receipt, beside = alone[0].complete.receipt, crowd[0].complete.receipt
        assert receipt.num_accepted_draft_tokens == beside.num_accepted_draft_tokens
        assert receipt.num_draft_tokens == beside.num_draft_tokens


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "coupled"])
async def test_lookup_first_asks_no_drafter(stage: Stage, sampling: SamplingParams):
    plain = [await stage.plain(prompt, sampling) for prompt in PROMPTS]
    for names in ([LOOKUP], [LOOKUP, "model"]):
        requests = [
            generate_request(prompt, sampling, sources=names, num_draft_tokens=4)
            for prompt in PROMPTS
        ]
        outputs = await together(*(stage.client.generate(each) for each in requests))
        for output, expected in zip(outputs, plain, strict=True):
            assert_parity(output, expected, names)
            receipt = output.complete.receipt
            assert set(receipt.draft_tokens_by_source) <= {LOOKUP}
            assert receipt.draft_ms == 0
            assert not receipt.HasField("drafter")
        drafted = sum(output.complete.receipt.num_draft_tokens for output in outputs)
        assert drafted > 0 or not sampling.is_greedy


async def test_a_parallel_draft_may_be_longer_than_one_pass(stage: Stage):
    """More tokens than the model fills at once take another pass behind the drawn ones."""
    output = await stage.speculated(PROMPTS[0], GREEDY, drafter="parallel", num_draft_tokens=8)
    receipt = output.complete.receipt
    assert receipt.num_draft_tokens / receipt.num_spec_steps > NUM_PARALLEL


@pytest.mark.parametrize("rule", [AcceptanceRule.REJECTION, AcceptanceRule.BLOCK])
@pytest.mark.parametrize("source", [*MODELS, "suffix+parallel"])
async def test_drafts_with_probabilities_are_judged_by_them(
    stage: Stage, source: str, rule: AcceptanceRule
):
    sampling = replace(SAMPLED, max_tokens=40)
    outputs = []
    for salt in ("a", "b"):
        request = generate_request(
            PROMPTS[2],
            sampling,
            sources=[source],
            num_draft_tokens=3,
            acceptance_rule=rule,
            cache_salt=salt,
        )
        outputs.append(await stage.client.generate(request, timeout_s=50))
    for output in outputs:
        receipt = output.complete.receipt
        assert receipt.rule == rule.value
        assert receipt.num_draft_tokens > 0
        assert not any("invalid" in each.reason for each in receipt.fallbacks)
        assert len(output.token_ids) == 40


async def test_later_outputs_of_a_salt_are_foreseen_from_earlier_ones(stage: Stage):
    """The suffix source remembers outputs, within one cache salt."""
    prompt = [201, 202, 203, 204]

    async def accepted(salt: str) -> int:
        output = await stage.speculated(prompt, GREEDY, drafter="suffix", salt=salt)
        return output.complete.receipt.num_accepted_draft_tokens

    first = await accepted("tenant a")
    second = await accepted("tenant a")
    assert second > first
    assert await accepted("tenant b") == first


@pytest.mark.parametrize("source", TREES)
async def test_trees_are_drafted_from_what_the_target_said(stage: Stage, source: str):
    """The second time the same output is known, branch by branch, within one cache salt."""

    async def receipt(salt: str):
        sampling = replace(GREEDY, max_tokens=60)
        output = await stage.speculated(
            PROMPTS[4], sampling, drafter=source, num_draft_tokens=12, salt=salt
        )
        assert_parity(output, await stage.plain(PROMPTS[4], sampling))
        return output.complete.receipt

    first, second = await receipt(f"{source} a"), await receipt(f"{source} a")
    assert second.num_accepted_draft_tokens > first.num_accepted_draft_tokens
    assert second.draft_tokens_by_source[source] > 0
    assert max(second.acceptance_histogram) > 0
    other = await receipt(f"{source} b")
    assert other.num_accepted_draft_tokens == first.num_accepted_draft_tokens


@pytest.mark.parametrize("source", [*TREES, "parallel-tree", ALL])
async def test_trees_are_verified_in_ratio_too(stage: Stage, source: str):
    sampling = replace(SAMPLED, temperature=0.3, max_tokens=60)
    for _ in range(2):
        request = generate_request(
            PROMPTS[5],
            sampling,
            sources=[source],
            num_draft_tokens=12,
            acceptance_rule=AcceptanceRule.REJECTION,
            cache_salt=source,
        )
        output = await stage.client.generate(request, timeout_s=50)
    receipt = output.complete.receipt
    assert receipt.rule == "rejection"
    assert receipt.num_accepted_draft_tokens > 0
    assert not any("invalid" in each.reason for each in receipt.fallbacks)


@pytest.mark.parametrize("source", [*TREES, "parallel-tree", ALL, LOOKAHEAD])
async def test_a_traced_tree_is_cut_to_a_chain(stage: Stage, source: str):
    request = generate_request(
        PROMPTS[6], GREEDY, sources=[source], num_draft_tokens=8, trace_top_ids=3
    )
    output = await stage.client.generate(request, timeout_s=50)
    assert_parity(output, await stage.plain(PROMPTS[6], GREEDY))
    if source != LOOKAHEAD:  # a short output gives it nothing to guess from
        assert output.complete.receipt.num_draft_tokens > 0


async def test_lookahead_keeps_nothing_for_the_next_request(stage: Stage):
    """Case 04: the same prompt five times, then another one, then the first again."""
    sampling = replace(GREEDY, max_tokens=60)
    plain = [await stage.plain(PROMPTS[index], sampling) for index in (0, 1)]
    receipts = []
    for index in (0, 0, 0, 0, 0, 1, 0):
        output = await stage.speculated(
            PROMPTS[index], sampling, drafter=LOOKAHEAD, num_draft_tokens=24
        )
        assert_parity(output, plain[index])
        if index == 0:
            receipts.append(output.complete.receipt)
    assert len({receipt.num_accepted_draft_tokens for receipt in receipts}) == 1
    assert len({receipt.num_draft_tokens for receipt in receipts}) == 1
    assert receipts[0].num_draft_tokens > 0, "the window gave no n-grams"


async def test_only_ids_of_the_draft_vocabulary_are_proposed(stage: Stage, drafter: Path):
    head = load_model(str(drafter), dtype="float32").draft_head
    assert head is not None
    assert head.draft_ids == DRAFT_IDS
    outputs = await together(
        *(stage.speculated(prompt, GREEDY, drafter="parallel") for prompt in PROMPTS)
    )
    said = {token_id for output in outputs for token_id in output.token_ids}
    accepted = {
        token_id
        for output in outputs
        for chunk in output.chunks
        for token_id, origin in zip(chunk.token_ids, chunk.origins, strict=True)
        if origin == pb.TOKEN_ORIGIN_ACCEPTED
    }
    assert accepted
    assert accepted <= set(DRAFT_IDS)
    assert said - set(DRAFT_IDS), "the target never left the draft vocabulary"


async def test_a_verifier_refuses_to_serve_a_draft_model(drafter: Path):
    settings = VerifierSettings(model=str(drafter), dtype="float32", num_threads=1)
    with pytest.raises(UnusableModel, match="a draft model, trained for a target"):
        async with open_verifier(settings):
            pass
