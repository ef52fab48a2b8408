"""Draft heads on the target's hidden states, end to end: outputs stay the target's own."""

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import torch
from transformers import AutoModelForCausalLM

from drafter_svc.__main__ import open_drafter
from drafter_svc.settings import DrafterSettings
from outrider.checkpoints.heads import assemble_head
from outrider.client import generate_request
from outrider.identity.weights import weights_digest
from outrider.sampling import AcceptanceRule, SamplingParams
from outrider.training.batches import make_batch
from outrider.training.corpus import Example
from outrider.training.eagle import EagleShape
from outrider.training.medusa import MedusaShape
from outrider.training.recipe import Ingredients, Shape
from outrider.training.redrafter import ReDrafterShape
from outrider.training.vocabulary import DraftVocabulary
from tests.cluster import cluster
from tests.integration.stage import Stage, assert_parity, open_stage, together
from tests.toy import save_toy
from verifier_svc.__main__ import open_verifier
from verifier_svc.settings import VerifierSettings

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

KINDS = ("eagle3", "medusa", "redrafter")
CHAINS = (*KINDS, *(f"suffix+{kind}" for kind in KINDS))
TREES = tuple(f"{kind}-tree" for kind in KINDS)
MERGED = tuple(f"suffix+recycling+{kind}-tree" for kind in KINDS)
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
SAMPLED = SamplingParams(temperature=0.7, max_tokens=16, seed=11, ignore_eos=True)
PROMPTS = [[20 + 7 * n, 300 + n, 5, 60 + n, 20 + 7 * n, 300 + n, 5] * 3 for n in range(8)]
DRAFT_IDS = tuple(i for i in range(510) if i % 8)
WIDTH, LAYERS, VOCAB = 64, 2, 512


SHAPES: dict[str, Shape] = {
    "eagle3": EagleShape((0, 1, LAYERS), anchors_per_answer=1.0),
    "medusa": MedusaShape((LAYERS,), num_heads=4),
    "redrafter": ReDrafterShape((LAYERS,)),
}


def answers(target: Path) -> list[Example]:
    """What the target says to the prompts, greedily."""
    module = AutoModelForCausalLM.from_pretrained(str(target), dtype=torch.float32)
    prompts = torch.tensor(PROMPTS)
    said = module.generate(
        prompts, do_sample=False, min_new_tokens=40, max_new_tokens=40, pad_token_id=0
    )
    rows = said[:, prompts.shape[1] :].tolist()
    pairs = zip(PROMPTS, rows, strict=True)
    return [Example(tuple(prompt), tuple(row), True, False) for prompt, row in pairs]


def save_heads(target: Path, folder: Path) -> list[Path]:
    """Make heads that learnt some answers of the target by heart."""
    torch.manual_seed(2)
    vocabulary = DraftVocabulary(torch.tensor(DRAFT_IDS), VOCAB)
    cpu = torch.device("cpu")
    ingredients = Ingredients(target, vocabulary, folder, folder / "features", cpu)
    batch = make_batch(answers(target))
    folders = []
    for kind, shape in SHAPES.items():
        recipe: Any = shape.build(ingredients)
        learning = [each for each in recipe.parameters() if each.requires_grad]
        optimizer = torch.optim.AdamW(learning, lr=5e-3)
        for step in range(50):
            optimizer.zero_grad()
            recipe.loss(batch, np.random.default_rng(step)).backward()
            optimizer.step()
        recipe.save(folder / f"{kind}-trained", trained_for=weights_digest(target))
        folders.append(assemble_head(target, folder / f"{kind}-trained", folder / kind))
    return folders


@pytest.fixture(scope="module")
def heads(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return save_heads(toy, tmp_path_factory.mktemp("heads"))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(toy: Path, heads: list[Path]) -> AsyncIterator[Stage]:
    target = VerifierSettings(model=str(toy), dtype="float32", num_threads=1)
    drafters = [
        DrafterSettings(model=str(folder), dtype="float32", num_threads=1) for folder in heads
    ]
    opened = [lambda each=each: open_drafter(each) for each in drafters]
    async with open_stage([target], drafters=opened) as running:
        yield running


@pytest.mark.parametrize("source", [*CHAINS, *TREES, *MERGED])
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "coupled"])
async def test_alone_and_eight_at_once_as_without_drafts(
    stage: Stage, source: str, sampling: SamplingParams
):
    plain = await together(*(stage.plain(prompt, sampling) for prompt in PROMPTS))
    num_draft_tokens = 4 if source in CHAINS else 16

    def speculated(index: int, salt: str):
        return stage.speculated(
            PROMPTS[index],
            sampling,
            drafter=source,
            num_draft_tokens=num_draft_tokens,
            salt=f"{salt} {source} {sampling.temperature}",
        )

    alone = [await speculated(index, f"alone {index}") for index in (0, 1, 0)]
    crowd = await together(*(speculated(index, f"crowd {index}") for index in range(8)))
    for output, index in zip((*alone, *crowd), (0, 1, 0, *range(8)), strict=True):
        assert_parity(output, plain[index], (source, index))
    receipts = [output.complete.receipt for output in crowd]
    assert sum(receipt.num_draft_tokens for receipt in receipts) > 0
    if source in (*KINDS, *TREES):
        assert sum(receipt.num_accepted_draft_tokens for receipt in receipts) > 0


async def test_a_prompt_that_the_verifier_has_read_before_drafts_alike(stage: Stage):
    """Of what the verifier's prefix cache serves no hidden states come; the drafter kept its
    own."""
    prompt = PROMPTS[0]
    first, again = [
        await stage.speculated(prompt, GREEDY, drafter="eagle3", salt="twice") for _ in range(2)
    ]
    assert_parity(again, first)
    assert again.complete.cached_tokens > first.complete.cached_tokens == 0
    one, two = first.complete.receipt, again.complete.receipt
    assert two.num_feature_bytes < one.num_feature_bytes
    assert two.num_accepted_draft_tokens == one.num_accepted_draft_tokens > 0


async def test_features_cost_what_the_page_says(stage: Stage):
    """Two bytes for each of layers x hidden numbers, for every position but the last token's."""
    for source, num_layers in (("eagle3", 3), ("medusa", 1)):
        output = await stage.speculated(PROMPTS[3], GREEDY, drafter=source, salt=f"cost {source}")
        num_positions = len(PROMPTS[3]) + len(output.token_ids) - 1
        expected = 2 * num_layers * WIDTH * num_positions
        assert output.complete.receipt.num_feature_bytes == expected


@pytest.mark.parametrize("rule", [AcceptanceRule.REJECTION, AcceptanceRule.BLOCK])
@pytest.mark.parametrize("source", [*KINDS, *TREES])
async def test_drafts_are_judged_in_ratio(stage: Stage, source: str, rule: AcceptanceRule):
    outputs = []
    for salt in ("a", "b"):
        request = generate_request(
            PROMPTS[2],
            replace(SAMPLED, max_tokens=60, temperature=0.3),
            sources=[source],
            num_draft_tokens=3,
            acceptance_rule=rule,
            cache_salt=salt,
        )
        outputs.append(await stage.client.generate(request, timeout_s=50))
    for output in outputs:
        receipt = output.complete.receipt
        assert receipt.num_draft_tokens > 0
        assert not any("invalid" in each.reason for each in receipt.fallbacks)
        assert len(output.token_ids) == 60


async def test_medusa_drafts_no_further_than_it_has_heads(stage: Stage):
    output = await stage.speculated(PROMPTS[0], GREEDY, drafter="medusa", num_draft_tokens=8)
    receipt = output.complete.receipt
    assert receipt.num_draft_tokens <= 4 * receipt.num_spec_steps


async def test_a_head_is_refused_by_a_target_with_other_weights(heads: list[Path], tmp_path: Path):
    other = save_toy(tmp_path / "other", seed=9)
    verifier = VerifierSettings(model=str(other), dtype="float32", num_threads=1)
    drafter = DrafterSettings(model=str(heads[0]), dtype="float32", num_threads=1)
    async with cluster(
        verifiers=[lambda: open_verifier(verifier)], drafters=[lambda: open_drafter(drafter)]
    ) as running:
        (refused,) = [worker for worker in running.workers if worker.role == "drafter"]
        assert refused.state == "refused"
        assert "weights: the head was made for" in refused.reason
        assert weights_digest(other) in refused.reason
