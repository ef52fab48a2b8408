"""A request that asks for it learns what each cycle took; the sums are those of its receipt."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from outrider.client import generate_request
from outrider.sampling import SamplingParams
from tests.cluster import Cluster, cluster
from tests.statistical.law import TableLaw
from tests.table_model import VOCAB_SIZE, table_drafter, table_verifier

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

TARGET = TableLaw.random(VOCAB_SIZE, seed=3)
DRAFT = TableLaw(TARGET.logits + TableLaw.random(VOCAB_SIZE, seed=4, scale=0.3).logits)
SAMPLING = SamplingParams(temperature=0.9, seed=6, max_tokens=24)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def services() -> AsyncIterator[Cluster]:
    async with cluster(
        verifiers=[table_verifier(TARGET)], drafters=[table_drafter(DRAFT)], draft_wait_ms=10_000
    ) as running:
        yield running


async def test_costs_add_up_to_the_receipt(services: Cluster) -> None:
    request = generate_request(
        [1, 2], SAMPLING, sources=["model"], num_draft_tokens=3, report_costs=True
    )
    output = await services.client.generate(request, timeout_s=30)
    receipt, costs = output.complete.receipt, [chunk.cost for chunk in output.chunks]
    assert [cost.cycle for cost in costs] == list(range(len(costs)))
    assert sum(cost.num_passes for cost in costs) == receipt.num_target_passes
    assert sum(cost.num_draft_tokens for cost in costs) == receipt.num_draft_tokens > 0
    assert sum(cost.draft_wait_ms for cost in costs) == pytest.approx(receipt.draft_ms, rel=1e-4)
    served_ms = sum(cost.queue_ms + cost.compute_ms for cost in costs)
    assert served_ms == pytest.approx(receipt.verify_ms, rel=1e-4)
    assert costs[0].queue_ms + costs[0].compute_ms == pytest.approx(receipt.prefill_ms, rel=1e-4)
    for chunk in output.chunks:
        cost = chunk.cost
        assert cost.num_accepted_draft_tokens <= cost.num_draft_tokens <= 3
        assert len(chunk.token_ids) <= cost.num_accepted_draft_tokens + 1
        assert cost.num_rows >= cost.num_draft_tokens + 1
        assert cost.cycle == 0 or cost.rows_in_pass >= cost.num_rows
        assert cost.round_trip_ms >= cost.queue_ms + cost.compute_ms
        assert bool(cost.source) == bool(cost.num_draft_tokens)
        assert not cost.is_tree


async def test_nobody_is_told_who_did_not_ask(services: Cluster) -> None:
    output = await services.client.generate(generate_request([1, 2], SAMPLING), timeout_s=30)
    assert not any(chunk.HasField("cost") for chunk in output.chunks)
