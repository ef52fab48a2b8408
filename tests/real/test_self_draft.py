"""A draft model that is the target itself is always right."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from outrider.client import generate_request
from outrider.questions import load_questions
from outrider.sampling import SamplingParams
from tests.cluster import Cluster, cluster
from tests.real.models import self_draft, target

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.integration]

PROMPT = load_questions(2)[1].text[:300]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def services() -> AsyncIterator[Cluster]:
    """The target, and a drafter with the same weights."""
    async with cluster(
        verifiers=[target()], drafters=[self_draft()], draft_wait_ms=10_000
    ) as running:
        yield running


@pytest.mark.timeout(120)
@pytest.mark.parametrize("temperature", [0.0, 0.9])
async def test_every_draft_token_of_the_target_itself_is_accepted(
    services: Cluster, temperature: float
) -> None:
    sampling = SamplingParams(temperature=temperature, seed=11, max_tokens=32, ignore_eos=True)
    how = {"sources": ["model"], "num_draft_tokens": 4, "cache_salt": str(temperature)}
    for state in ("cold", "on a prefix hit"):
        request = generate_request([("user", PROMPT)], sampling, **how)
        complete = (await services.client.generate(request)).complete
        assert (complete.cached_tokens > 0) == (state == "on a prefix hit")
        receipt = complete.receipt
        assert receipt.num_draft_tokens >= 20
        assert receipt.draft_acceptance_rate == 1.0
        assert complete.completion_tokens == 32
