"""12. COUPLED is the default of every sampled request; the receipt reports a drawn seed.

14. Draft distributions travel in every mode where the source has them.
15. Both sides call the same function with the same noise: a drafter of equal weights drafts the
tokens that the target will choose.
"""

from pathlib import Path

import pytest

from outrider import wire
from outrider.client import generate_request
from outrider.sampling import SamplingParams
from tests.cluster import cluster
from tests.conformance.conftest import Worker
from tests.conformance.wire import GREEDY, SAMPLED, draft_stream, verify_stream
from verifier_svc.__main__ import open_verifier
from verifier_svc.settings import VerifierSettings

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.integration]
PROMPT = [10, 20, 30, 40]


async def test_a_drawn_seed_is_reported_and_repeats_the_output(toy: Path) -> None:
    settings = VerifierSettings(model=str(toy), dtype="float32")
    async with cluster(verifiers=[lambda: open_verifier(settings)]) as services:
        sampling = SamplingParams(temperature=1.0, max_tokens=16, ignore_eos=True)
        drawn = await services.client.generate(generate_request(PROMPT, sampling))
        other = await services.client.generate(generate_request(PROMPT, sampling))
        receipt = drawn.complete.receipt
        assert receipt.rule == other.complete.receipt.rule == "coupled"
        assert receipt.seed != other.complete.receipt.seed
        again = SamplingParams(temperature=1.0, max_tokens=16, ignore_eos=True, seed=receipt.seed)
        repeated = await services.client.generate(generate_request(PROMPT, again))
        assert repeated.token_ids == drawn.token_ids
        greedy = await services.client.generate(generate_request(PROMPT, GREEDY))
        assert greedy.complete.receipt.rule == "greedy"


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
async def test_c14_distributions_travel_in_every_mode(drafter: Worker, sampling: object) -> None:
    async with draft_stream(drafter.address, sampling=sampling) as stream:
        await stream.advance(PROMPT)
        draft = (await stream.read()).block.draft
        assert len(draft.distributions) == len(draft.token_ids) == 4
        for token_id, each in zip(draft.token_ids, draft.distributions, strict=True):
            ids, counts = wire.unpack(each.ids, each.counts)
            assert token_id in ids
            assert counts.sum() == 65536
            assert counts.min() >= 1


async def test_c15_equal_weights_draft_what_the_target_chooses(
    verifier: Worker, drafter: Worker
) -> None:
    async with draft_stream(drafter.address, sampling=SAMPLED) as stream:
        await stream.advance(PROMPT, num_tokens=8)
        draft = (await stream.read()).block.draft
    async with verify_stream(verifier.address, sampling=SAMPLED, salt="c15") as stream:
        verdict = (await stream.step(PROMPT, draft=draft)).verdict
        assert list(verdict.accepted_nodes) == list(range(8))
