"""Draft heads on the target's hidden states, end to end: outputs stay the target's own."""

from collections.abc import AsyncIterator
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import pytest_asyncio
import torch

from drafter_svc.__main__ import open_drafter
from drafter_svc.settings import DrafterSettings
from outrider.checkpoints.heads import HeadFile, assemble_head, save_head
from outrider.client import generate_request
from outrider.heads.medusa import MedusaConfig, MedusaHead
from outrider.heads.redrafter import ReDrafterConfig, ReDrafterHead
from outrider.identity.weights import weights_digest
from outrider.sampling import AcceptanceRule, SamplingParams
from outrider.training.eagle import EagleRecipe, EagleShape
from outrider.training.recipe import Ingredients
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
GREEDY = SamplingParams(temperature=0.0, max_tokens=40, ignore_eos=True)
SAMPLED = SamplingParams(temperature=0.7, max_tokens=24, seed=11, ignore_eos=True)
PROMPTS = [[20 + 7 * n, 300 + n, 5, 60 + n, 20 + 7 * n, 300 + n, 5] * 2 for n in range(8)]
DRAFT_IDS = tuple(i for i in range(510) if i % 8)
WIDTH, LAYERS, VOCAB = 64, 2, 512


def save_heads(target: Path, folder: Path) -> list[Path]:
    """Make heads that were not trained: EAGLE-3 begins as the target's last layer."""
    torch.manual_seed(2)
    digest = weights_digest(target)
    vocabulary = DraftVocabulary(torch.tensor(DRAFT_IDS), VOCAB)
    cpu = torch.device("cpu")
    ingredients = Ingredients(target, vocabulary, folder, folder / "features", cpu)
    eagle = EagleRecipe(EagleShape((0, 1, LAYERS)), ingredients).head
    medusa = MedusaHead(MedusaConfig(4, 1, WIDTH, VOCAB, (LAYERS,), DRAFT_IDS))
    config = ReDrafterConfig(WIDTH, 32, WIDTH, 1, VOCAB, (LAYERS,), DRAFT_IDS)
    recurrent = ReDrafterHead(config)
    with torch.no_grad():
        recurrent.exit.weight[:, :WIDTH] += torch.eye(WIDTH)
    folders = []
    for kind, head in zip(KINDS, (eagle, medusa, recurrent), strict=True):
        stated = HeadFile(kind, asdict(head.config), digest)
        save_head(folder / f"{kind}-trained", stated, head.state_dict())
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
        # The second time the verifier has the prompt; the drafter has read it before as well.
        first, again = alone[0].complete.receipt, alone[2].complete.receipt
        assert again.cached_tokens > first.cached_tokens == 0
        assert again.num_accepted_draft_tokens == first.num_accepted_draft_tokens
        assert again.num_feature_bytes < first.num_feature_bytes


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


async def test_a_head_is_refused_by_a_target_with_other_weights(
    heads: list[Path], tmp_path: Path
):
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
