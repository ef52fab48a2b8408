"""A pair whose drafts change the output is found before the first client's request."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import pytest

from orchestrator import canary
from outrider.client import generate_request
from outrider.engine import Finished
from outrider.sampling import SamplingParams
from outrider.serving.server import Register
from outrider.v1 import generation_pb2 as pb
from tests import table_model
from tests.cluster import cluster
from tests.statistical.law import TableLaw
from tests.table_model import VOCAB_SIZE, table_drafter, table_verifier
from verifier_svc.verification import VerificationHead

pytestmark = pytest.mark.integration

LAW = TableLaw.random(VOCAB_SIZE, seed=1)
OTHER = TableLaw.random(VOCAB_SIZE, seed=2)
GREEDY = SamplingParams(temperature=0.0, max_tokens=16)


class Gullible(VerificationHead):
    """Accepts the first draft token, whatever it is."""

    def __call__(self, finished: list[Finished]) -> None:
        super().__call__(finished)
        for entry in finished:
            job = entry.job
            if job.draft_token_ids and not job.decision.num_accepted:
                job.decision = replace(job.decision, accepted_nodes=(0,))


@asynccontextmanager
async def gullible_verifier() -> AsyncIterator[Register]:
    before = table_model.VerificationHead
    table_model.VerificationHead = Gullible  # type: ignore[misc]
    try:
        async with table_verifier(LAW)() as register:
            yield register
    finally:
        table_model.VerificationHead = before  # type: ignore[misc]


async def test_a_pair_that_passes_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    run, outcomes = canary._run, []

    async def recorded(*arguments: object) -> canary.Outcome:
        outcomes.append(await run(*arguments))  # type: ignore[arg-type]
        return outcomes[-1]

    monkeypatch.setattr(canary, "_run", recorded)
    async with cluster(
        verifiers=[table_verifier(LAW)], drafters=[table_drafter(OTHER)], canary=True
    ) as running:
        info = await running.client.stub.GetServerInfo(pb.GetServerInfoRequest())
        assert (info.state, info.pairs[0].reason) == ("ready", "")
        output = await running.client.generate(generate_request([1, 2], GREEDY), timeout_s=10)
        assert output.complete.receipt.num_draft_tokens > 0
    plain, drafted = outcomes
    assert plain.num_draft_tokens == 0
    assert drafted.num_draft_tokens > 10, "it was a real test"


async def test_a_pair_that_changes_the_output_is_refused() -> None:
    async with cluster(
        verifiers=[gullible_verifier], drafters=[table_drafter(OTHER)], canary=True
    ) as running:
        info = await running.client.stub.GetServerInfo(pb.GetServerInfoRequest())
        assert info.state == "degraded"
        assert "canary: with drafts output token" in info.pairs[0].reason
        request = generate_request([1, 2], GREEDY, sources=["model"])
        drafted = await running.client.generate(request, timeout_s=10)
        plain = await running.client.generate(
            generate_request([1, 2], GREEDY, target_only=True), timeout_s=10
        )
    assert drafted.token_ids == plain.token_ids
    assert drafted.complete.receipt.num_draft_tokens == 0


async def test_without_a_canary_the_output_would_have_changed() -> None:
    async with cluster(
        verifiers=[gullible_verifier], drafters=[table_drafter(OTHER)], draft_wait_ms=5_000
    ) as running:
        request = generate_request([1, 2], GREEDY, sources=["model"])
        drafted = await running.client.generate(request, timeout_s=10)
        plain = await running.client.generate(
            generate_request([1, 2], GREEDY, target_only=True), timeout_s=10
        )
    assert drafted.token_ids != plain.token_ids
