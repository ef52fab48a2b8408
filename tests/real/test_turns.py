"""The second turn of a conversation reads only what is new: the first is in the prefix cache."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from outrider.client import generate_request
from outrider.sampling import SamplingParams
from tests.cluster import Cluster, cluster
from tests.real.models import target

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.integration]

BLOCK = 16
FIRST = "Name three rivers of Europe, each with the countries that it flows through."
SECOND = "Which of them is the longest?"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def services() -> AsyncIterator[Cluster]:
    """The target; drafts come from lookup."""
    async with cluster(verifiers=[target()]) as running:
        yield running


@pytest.mark.timeout(120)
@pytest.mark.parametrize("temperature", [0.0, 0.7])
async def test_the_second_turn_reads_what_is_new(services: Cluster, temperature: float) -> None:
    """Drafted and sampled tokens of the answer are kept like those of the prompt; full blocks only.

    The last token of an answer is never read by the target, so its KV is not there. A sampled
    answer may hold tokens that its text, read again, does not: from there on nothing is found.
    """
    sampling = SamplingParams(temperature=temperature, seed=4, max_tokens=32)
    asked = [("user", FIRST)]
    salt = f"turns at {temperature}"
    first = await services.client.generate(
        generate_request(asked, sampling, sources=["ngram"], cache_salt=salt)
    )
    assert first.complete.cached_tokens == 0
    read = (await services.client.tokenize(asked) + first.token_ids)[:-1]
    turns = [*asked, ("assistant", first.text), ("user", SECOND)]
    prompt = await services.client.tokenize(turns)
    pairs = enumerate(zip(prompt, read, strict=False))
    num_common = next((i for i, (one, other) in pairs if one != other), len(read))
    assert num_common >= first.complete.prompt_tokens + BLOCK
    assert num_common == len(read) or temperature > 0, "the template leaves the answer as it is"
    second = await services.client.generate(
        generate_request(turns, sampling, sources=["ngram"], cache_salt=salt)
    )
    assert second.complete.cached_tokens == num_common // BLOCK * BLOCK
    cold = await services.client.generate(
        generate_request(turns, sampling, target_only=True, cache_salt=f"{salt}, cold")
    )
    assert cold.complete.cached_tokens == 0
    assert second.token_ids == cold.token_ids
