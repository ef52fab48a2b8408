"""No temperature makes the numbers break, alone or in a batch of others."""

import math
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
import pytest_asyncio

from drafter_svc.settings import DrafterSettings
from outrider.client import generate_request
from outrider.sampling import SamplingParams
from tests.integration.stage import Stage, assert_parity, open_stage, together
from verifier_svc.settings import VerifierSettings

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

PROMPT = [9, 120, 33]
PARAMS = SamplingParams(temperature=1.0, max_tokens=16, seed=3, ignore_eos=True)
GREEDY_ALIKE = (0.0, 1e-12, 1e-6, 1e-5)
TEMPERATURES = (*GREEDY_ALIKE, 1e-3, 0.01, 2.0, 100.0)
DRAFTERS = ("oracle", "alt", "wrong", "model", "ngram")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(toy: Path, other: Path) -> AsyncIterator[Stage]:
    target = VerifierSettings(model=str(toy), dtype="float32", num_threads=1)
    draft_model = DrafterSettings(model=str(other), dtype="float32", num_threads=1)
    async with open_stage([target], draft_model=draft_model) as opened:
        yield opened


async def test_every_temperature_decodes_alone_and_in_mixed_batches(stage: Stage):
    """Case 10: one parity for each drafter and temperature, first alone, then all at once."""
    params = [replace(PARAMS, temperature=temperature) for temperature in TEMPERATURES]
    plain = [await stage.plain(PROMPT, each) for each in params]
    cells = [(drafter, at) for drafter in DRAFTERS for at in range(len(params))]
    mixed = await together(
        *(stage.speculated(PROMPT, params[at], drafter=drafter) for drafter, at in cells)
    )
    for (drafter, at), output in zip(cells, mixed, strict=True):
        assert_parity(output, plain[at], (drafter, TEMPERATURES[at]))
    for output in (*plain, *mixed):
        receipt = output.complete.receipt
        assert math.isfinite(receipt.min_decision_margin)
        assert receipt.min_decision_margin >= 0
        # A token for every pass at least, so nothing was verified in vain.
        assert receipt.num_target_passes <= len(output.token_ids)


async def test_tiny_temperatures_are_greedy(stage: Stage):
    """Case 10: the smallest ones do not divide by what rounds to nothing."""
    greedy, *others = await together(
        *(stage.plain(PROMPT, replace(PARAMS, temperature=each)) for each in GREEDY_ALIKE)
    )
    assert greedy.complete.receipt.rule == "greedy"
    for output in others:
        assert_parity(output, greedy)
        assert output.complete.receipt.rule == "greedy"
    warm = await stage.plain(PROMPT, replace(PARAMS, temperature=2.0))
    assert warm.complete.receipt.rule == "coupled"
    assert warm.token_ids != greedy.token_ids


@pytest.mark.parametrize("temperature", [-1e-9, -1.0, 100.5, math.nan, math.inf, -math.inf])
async def test_a_temperature_that_is_none_is_refused(stage: Stage, temperature: float):
    """Case 10: negative, not a number, or beyond the range."""
    request = generate_request(PROMPT, PARAMS, sources=["alt"])
    request.sampling_params.temperature = temperature
    with pytest.raises(grpc.aio.AioRpcError, match=r"sampling_params\.temperature") as raised:
        await stage.client.generate(request)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
