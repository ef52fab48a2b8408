"""Traces of real cycles say what happened: thresholds explain verdicts, commits are the output."""

import json
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from outrider.cli.trace import TraceOptions, run_trace
from outrider.client import generate_request
from outrider.sampling import AcceptanceRule, SamplingParams
from tests.cluster import Cluster, cluster
from tests.statistical.law import TableLaw
from tests.table_model import VOCAB_SIZE, table_drafter, table_verifier

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

TARGET = TableLaw.random(VOCAB_SIZE, seed=3)
DRAFT = TableLaw(TARGET.logits + TableLaw.random(VOCAB_SIZE, seed=4, scale=0.3).logits)
SAMPLED = SamplingParams(temperature=0.9, seed=6, max_tokens=24)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def services() -> AsyncIterator[Cluster]:
    async with cluster(
        verifiers=[table_verifier(TARGET)], drafters=[table_drafter(DRAFT)], draft_wait_ms=10_000
    ) as running:
        yield running


@pytest.mark.parametrize("rule", AcceptanceRule)
@pytest.mark.parametrize("temperature", [0.9, 0.0])
async def test_cycles_add_up_to_the_output(
    services: Cluster, rule: AcceptanceRule, temperature: float
) -> None:
    sampling = SamplingParams(temperature=temperature, seed=6, max_tokens=24)
    request = generate_request(
        [1, 2], sampling, sources=["model"], acceptance_rule=rule, trace_top_ids=6
    )
    output = await services.client.generate(request, timeout_s=30)
    receipt = output.complete.receipt
    assert receipt.rule == ("greedy" if temperature == 0 else rule.value)
    at, num_accepted = 2, 0
    for number, chunk in enumerate(output.chunks):
        trace = chunk.trace
        assert (trace.cycle, trace.base_position) == (number, at)
        rows, draft = trace.step.rows, list(trace.draft.token_ids)
        assert len(rows) == len(draft) + 1
        kept = sum(row.accepted for row in rows)
        assert list(chunk.token_ids)[:kept] == draft[:kept]
        if trace.step.rule == "rejection":
            passed = [row.acceptance_uniform < row.threshold for row in rows[:-1]]
            assert kept == (passed.index(False) if False in passed else len(draft))
        if trace.step.rule == "block":
            passed = [0, *(i + 1 for i, r in enumerate(rows[:-1]) if is_below(r))]
            assert kept == (max(passed) if draft else 0)
        if trace.step.rule in ("coupled", "greedy"):
            own = [row.target_token_id for row in rows]
            assert list(chunk.token_ids) == own[: len(chunk.token_ids)]
        for row in rows:
            assert sum(row.target.probs) == pytest.approx(1)
        at += len(chunk.token_ids)
        num_accepted += sum(o == 1 for o in chunk.origins)
    assert num_accepted == receipt.num_accepted_draft_tokens > 0


def is_below(row: object) -> bool:
    return row.acceptance_uniform < row.threshold  # type: ignore[attr-defined]


async def test_nothing_is_traced_unless_asked_for(services: Cluster) -> None:
    output = await services.client.generate(generate_request([1, 2], SAMPLED), timeout_s=30)
    assert not any(chunk.HasField("trace") for chunk in output.chunks)


async def test_the_command_shows_them(services: Cluster, capsys: pytest.CaptureFixture) -> None:
    for as_json in (False, True):
        options = TraceOptions(
            prompt="1 2 ",
            address=services.address,
            chat=False,
            source="model",
            num_draft_tokens=3,
            rule=AcceptanceRule.REJECTION,
            sampling=SAMPLED,
            num_ids=6,
            as_json=as_json,
            timeout_s=30,
        )
        await run_trace(options)
        told = capsys.readouterr().out
        if as_json:
            cycles = json.loads(told)["cycles"]
            assert sum(len(cycle["committed"]) for cycle in cycles) == 24
            assert cycles[1]["rule"] == "rejection"
        else:
            assert "cycle 1 at position 2: 3 tokens of model, rule rejection" in told
            assert "uniform" in told


async def test_a_trace_too_long_is_refused_by_name(services: Cluster) -> None:
    with pytest.raises(Exception, match="speculation.trace_top_ids"):
        await services.client.generate(generate_request([1, 2], SAMPLED, trace_top_ids=65))
