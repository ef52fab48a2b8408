"""A phase without drafts does not spoil the drafts after it."""

from dataclasses import replace
from pathlib import Path

import pytest

from drafter_svc.__main__ import open_drafter
from drafter_svc.settings import DrafterSettings
from orchestrator.__main__ import SERVICE_NAMES, open_orchestrator
from orchestrator.policy import SpeculationPlan, plan_of
from orchestrator.settings import OrchestratorSettings
from outrider.cli.pairing import wait_paired
from outrider.client import Client, generate_request
from outrider.policy import Decision
from outrider.sampling import SamplingParams
from tests.cluster import DRAFTER_NAMES, VERIFIER_NAMES, serving
from tests.integration.stage import ANSWER_S, DRAFT_WAIT_MS, assert_parity, fallbacks
from verifier_svc.__main__ import open_verifier
from verifier_svc.settings import VerifierSettings

pytestmark = pytest.mark.integration

PROMPT = [101, 202, 303]
BEFORE, WITHOUT, AFTER = 10, 30, 10  # cycles; the first of all is the prefill
K = 3
# The prefill's token, K + 1 of every cycle with a draft, one of every other.
NUM_TOKENS = 1 + (BEFORE - 1) * (K + 1) + WITHOUT + AFTER * (K + 1)


def length_of(cycle: int) -> int:
    """Drafts, a long while none, then drafts again."""
    return 0 if BEFORE <= cycle < BEFORE + WITHOUT else K


def scheduled_plan(decision: Decision, *, num_traced_ids: int = 0) -> SpeculationPlan:
    """Plan drafts by the schedule, whatever was asked for."""
    plan = plan_of(decision, num_traced_ids=num_traced_ids)
    return replace(plan, num_draft_tokens=length_of) if plan.speculates else plan


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_drafts_are_as_good_after_a_pause_as_before(
    toy: Path, temperature: float, monkeypatch: pytest.MonkeyPatch
):
    """Case 37: the draft model is the target, so every draft is accepted, also after the pause."""
    monkeypatch.setattr("orchestrator.request.plan_of", scheduled_plan)
    verifier = VerifierSettings(model=str(toy), dtype="float32", num_threads=1)
    drafter = DrafterSettings(model=str(toy), dtype="float32", num_threads=1)
    sampling = SamplingParams(
        temperature=temperature, max_tokens=NUM_TOKENS, seed=1, ignore_eos=True
    )
    async with (
        serving(VERIFIER_NAMES, lambda: open_verifier(verifier)) as target_at,
        serving(DRAFTER_NAMES, lambda: open_drafter(drafter)) as draft_at,
    ):
        settings = OrchestratorSettings(
            verifier=(target_at,), drafter=(draft_at,), draft_wait_ms=DRAFT_WAIT_MS
        )
        async with (
            serving(SERVICE_NAMES, lambda: open_orchestrator(settings)) as address,
            Client(address) as client,
        ):
            await wait_paired(client)
            plain = await client.generate(
                generate_request(PROMPT, sampling, target_only=True), timeout_s=ANSWER_S
            )
            output = await client.generate(
                generate_request(PROMPT, sampling, sources=["model"]), timeout_s=ANSWER_S
            )
    assert_parity(output, plain)
    receipt = output.complete.receipt
    num_drafts = BEFORE - 1 + AFTER
    assert list(receipt.acceptance_histogram) == [0] * K + [num_drafts]
    assert receipt.num_draft_tokens == receipt.num_accepted_draft_tokens == K * num_drafts
    assert receipt.draft_acceptance_rate == 1.0
    assert fallbacks(output) == {"prefill": 1, "length_zero": WITHOUT}
    runs = [len(chunk.token_ids) for chunk in output.chunks]
    assert runs == [1, *[K + 1] * (BEFORE - 1), *[1] * WITHOUT, *[K + 1] * AFTER]
    assert receipt.num_ledger_heals == 0
