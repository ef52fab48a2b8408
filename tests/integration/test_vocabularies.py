"""Heads may be padded; what counts is the tokenizer."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from drafter_svc.__main__ import open_drafter
from drafter_svc.settings import DrafterSettings
from outrider.sampling import SamplingParams
from tests.cluster import cluster
from tests.integration.conftest import SCALE
from tests.integration.stage import Stage, assert_parity, open_stage, together
from tests.toy import save_toy
from verifier_svc.__main__ import open_verifier
from verifier_svc.settings import VerifierSettings

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

NUM_IDS = 490
# Hot enough that every row of the head would come up: a padded one in 22 of 512 draws.
HOT = SamplingParams(temperature=20.0, max_tokens=32, ignore_eos=True, seed=0)
WARM = replace(HOT, temperature=0.9)
GREEDY = replace(HOT, temperature=0.0)


@pytest.fixture(scope="module")
def padded(models: Path) -> dict[int, Path]:
    """Models with one tokenizer of 490 ids and heads of other sizes, by size."""
    return {
        size: save_toy(
            models / f"padded-{size}",
            seed=size,
            vocab_size=NUM_IDS,
            logits_size=size,
            scale=SCALE,
        )
        for size in (500, 512)
    }


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=[(512, 500), (500, 512)])
async def stage(padded: dict[int, Path], request: pytest.FixtureRequest) -> AsyncIterator[Stage]:
    target, draft = request.param
    async with open_stage(
        [VerifierSettings(model=str(padded[target]), dtype="float32", num_threads=1)],
        draft_model=DrafterSettings(model=str(padded[draft]), dtype="float32", num_threads=1),
    ) as opened:
        identities = {worker.identity.name: worker.identity for worker in opened.cluster.workers}
        assert identities[padded[target].name].logits_size == target
        assert identities[padded[target].name].vocab_size == NUM_IDS
        yield opened


async def test_padded_rows_are_never_drafted_or_emitted(stage: Stage):
    """Case 30: a pair whose heads differ by padding works, and its padding is never an id.

    Drafts are seen in the receipts: an id of the padding would be an invalid draft.
    """
    for params in (HOT, WARM, GREEDY):
        seeded = [replace(params, seed=seed) for seed in range(5)]
        plain = await together(*(stage.plain([3, 4, 5], each) for each in seeded))
        outputs = await together(
            *(stage.speculated([3, 4, 5], each, drafter="model") for each in seeded)
        )
        for output, expected in zip(outputs, plain, strict=True):
            assert_parity(output, expected, params)
            assert len(output.token_ids) == params.max_tokens
            assert max(output.token_ids) < NUM_IDS
            reasons = {each.reason for each in output.complete.receipt.fallbacks}
            assert reasons <= {"prefill", "near_the_end"}
            assert output.complete.receipt.num_draft_tokens > 0


async def test_another_tokenizer_of_the_same_size_is_refused_with_both_fingerprints(
    padded: dict[int, Path], models: Path
):
    """Case 30: at registration, and the orchestrator goes on without that drafter."""
    swapped = save_toy(
        models / "swapped", seed=1, vocab_size=NUM_IDS, logits_size=512, swap=(65, 66)
    )
    target = VerifierSettings(model=str(padded[512]), dtype="float32", num_threads=1)
    draft = DrafterSettings(model=str(swapped), dtype="float32", num_threads=1)
    async with AsyncExitStack() as exits:
        running = await exits.enter_async_context(
            cluster(
                verifiers=[lambda: open_verifier(target)], drafters=[lambda: open_drafter(draft)]
            )
        )
        verifier, drafter = running.workers
        assert (verifier.state, drafter.state) == ("ready", "refused")
        fingerprints = [worker.identity.digests.tokenizer_digest for worker in (verifier, drafter)]
        assert fingerprints[0] != fingerprints[1]
        assert all(fingerprint in drafter.reason for fingerprint in fingerprints)
        assert "token 65" in drafter.reason
        stage = Stage(running, book=None, model=verifier.identity.name)  # type: ignore[arg-type]
        output = await stage.speculated("hello", GREEDY, drafter="model")
        assert output.complete.receipt.num_draft_tokens == 0
        assert {each.reason for each in output.complete.receipt.fallbacks} >= {"no_drafter"}
