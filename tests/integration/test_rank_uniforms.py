"""The numbers that a verifier states of committed tokens are those that its table gives."""

from collections.abc import Sequence

import numpy as np
import pytest

from outrider import noise
from outrider.sampling import SamplingParams
from outrider.v1 import common_pb2, verifier_pb2
from tests.cluster import VERIFIER_NAMES, serving
from tests.conformance.wire import verify_stream
from tests.statistical.law import TableLaw
from tests.table_model import VOCAB_SIZE, table_verifier

pytestmark = pytest.mark.integration

LAW = TableLaw.random(VOCAB_SIZE, seed=7)
PROMPT = [1, 4, 2]
SAMPLED = SamplingParams(temperature=0.8, seed=11, max_tokens=32)
DRAFT = (0, 3, 5)


async def verdict(
    sampling: SamplingParams,
    mode: int,
    draft: Sequence[int] | common_pb2.Draft = (),
    *,
    asked: bool = True,
) -> verifier_pb2.Verdict:
    async with (
        serving(VERIFIER_NAMES, table_verifier(LAW)) as address,
        verify_stream(address, sampling=sampling, mode=mode, num_prompt_tokens=3) as stream,
    ):
        first = (await stream.step(PROMPT, draft=draft, cycle=5, rank_uniforms=asked)).verdict
        again = (await stream.step(PROMPT, draft=draft, cycle=5, rank_uniforms=asked)).verdict
    assert list(first.rank_uniforms) == list(again.rank_uniforms), "a repeated step repeats them"
    return first


def by_hand(committed: Sequence[int], draft: Sequence[int] | None) -> list[float]:
    """Walk through the ids in their order, adding up what comes before the committed one."""
    text, found = list(PROMPT), []
    for at, token_id in enumerate(committed):
        scaled = np.exp(LAW.rows(np.array([text[-2:]]))[0] / 0.8)
        probs = scaled / scaled.sum()
        drafted = None if draft is None or at >= len(draft) else draft[at]
        order = sorted(range(VOCAB_SIZE), key=lambda i: (i != drafted, -probs[i], i))
        before = sum(probs[i] for i in order[: order.index(token_id)])
        random = noise.uniforms([11], [0], [len(text)], [0], noise.Stream.RANK)[0]
        found.append(before + random * probs[token_id])
        text.append(token_id)
    return found


def committed(verdict: verifier_pb2.Verdict, draft: Sequence[int]) -> list[int]:
    return [*(draft[node] for node in verdict.accepted_nodes), verdict.next_token_id]


async def test_coupled_tokens_are_ordered_by_likelihood():
    own = await verdict(SAMPLED, common_pb2.MODE_COUPLED)
    draft = (own.next_token_id, 3, 5)  # the first is right
    told = await verdict(SAMPLED, common_pb2.MODE_COUPLED, draft)
    assert len(told.rank_uniforms) == len(told.accepted_nodes) + 1 >= 2
    expected = by_hand(committed(told, draft), None)
    np.testing.assert_allclose(told.rank_uniforms, expected, atol=1e-6)


@pytest.mark.parametrize("draft", [DRAFT, (2, 2), (1,), ()])
async def test_in_ratio_the_drafts_token_comes_first(draft):
    told = await verdict(SAMPLED, common_pb2.MODE_RATIO, draft)
    expected = by_hand(committed(told, draft), draft)
    np.testing.assert_allclose(told.rank_uniforms, expected, atol=1e-6)


async def test_there_are_none_where_nobody_asks_or_nothing_is_drawn():
    greedy = SamplingParams(temperature=0.0, max_tokens=32)
    assert not (await verdict(greedy, common_pb2.MODE_GREEDY)).rank_uniforms
    told = await verdict(SAMPLED, common_pb2.MODE_RATIO, DRAFT, asked=False)
    assert not told.rank_uniforms
