"""8. A Step without a verdict in time is cancelled and failed over; time-outs <= 0 are refused."""

import asyncio
from collections.abc import Iterable
from pathlib import Path

import grpc
import pytest

from orchestrator.settings import OrchestratorSettings
from orchestrator.step_time import StepTime
from outrider.client import generate_request
from outrider.sampling import SamplingParams
from outrider.serving.settings import parse_settings
from outrider.v1 import verifier_pb2
from tests.cluster import cluster
from tests.conformance.hung import Counted, hanging_after
from verifier_svc import __main__ as verifier_main
from verifier_svc.__main__ import open_verifier
from verifier_svc.lease import VerifierLease
from verifier_svc.servicer import VerifierServicer
from verifier_svc.settings import VerifierSettings

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.integration]
PROMPT = [10, 20, 30, 40]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_the_stream_goes_on_at_an_equal_verifier(toy: Path, temperature: float) -> None:
    settings = VerifierSettings(model=str(toy), dtype="float32")
    sampling = SamplingParams(temperature=temperature, seed=3, max_tokens=24, ignore_eos=True)
    request = generate_request(PROMPT, sampling)

    def plain() -> object:
        return open_verifier(settings)

    async with cluster(verifiers=[plain]) as unbroken:
        expected = (await unbroken.client.generate(request)).token_ids
    counted = Counted()
    hanging = hanging_after(5, plain, counted)
    async with cluster(
        verifiers=[hanging, plain], min_step_timeout_s=0.5, step_timeout_factor=0.01
    ) as services:
        outputs = await asyncio.gather(*(services.client.generate(request) for _ in range(4)))
    assert counted.num_streams > 0
    assert sum(output.complete.receipt.num_failovers for output in outputs) == counted.num_streams
    for output in outputs:
        assert output.token_ids == expected
        assert [i for chunk in output.chunks for i in chunk.token_ids] == expected


async def test_a_silent_verifier_is_tried_again_when_the_other_fell_silent_too(toy: Path) -> None:
    """A busy machine can make both miss their time; that is no reason to give a stream up."""
    settings = VerifierSettings(model=str(toy), dtype="float32")
    sampling = SamplingParams(temperature=1.0, seed=3, max_tokens=24, ignore_eos=True)
    request = generate_request(PROMPT, sampling)

    def plain() -> object:
        return open_verifier(settings)

    async with cluster(verifiers=[plain]) as unbroken:
        expected = (await unbroken.client.generate(request)).token_ids
    both = [hanging_after(9, plain, Counted()) for _ in range(2)]
    async with cluster(
        verifiers=both, min_step_timeout_s=0.5, step_timeout_factor=0.01
    ) as services:
        output = await services.client.generate(request)
        assert output.token_ids == expected
        assert output.complete.receipt.num_failovers == 2
    both = [hanging_after(2, plain, Counted()) for _ in range(2)]
    async with cluster(
        verifiers=both, min_step_timeout_s=0.5, step_timeout_factor=0.01
    ) as services:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await services.client.generate(request)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE, "but not for ever"


class Slow(VerifierServicer):
    """Takes 20 ms for every id, one step after the other."""

    turn = asyncio.Lock()

    async def _step(
        self, lease: VerifierLease, request: verifier_pb2.VerifyRequest
    ) -> Iterable[verifier_pb2.VerifyResponse]:
        async with Slow.turn:
            await asyncio.sleep(0.02 * len(request.step.token_ids))
        return await VerifierServicer._step(self, lease, request)


async def test_a_verifier_that_has_much_to_do_is_not_hung(
    toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sixteen prompts at once: the last one waits for all, far longer than for its own ids."""
    monkeypatch.setattr(verifier_main, "VerifierServicer", Slow)
    settings = VerifierSettings(model=str(toy), dtype="float32")
    sampling = SamplingParams(temperature=0.0, max_tokens=3, ignore_eos=True)
    requests = [generate_request([10 + n, *range(20, 39)], sampling) for n in range(16)]
    async with cluster(
        verifiers=[lambda: open_verifier(settings)],
        min_step_timeout_s=0.2,
        step_timeout_factor=3.0,
    ) as services:
        outputs = await asyncio.gather(*map(services.client.generate, requests))
    assert all(len(output.token_ids) == 3 for output in outputs)
    assert not any(output.complete.receipt.num_failovers for output in outputs)


async def test_patience_is_the_larger_of_five_seconds_and_ten_times_the_expected_time() -> None:
    quick = StepTime(s_per_token=0.001, s_per_pass=0.02)
    assert quick.timeout_s(1) == 5.0
    slow = StepTime(s_per_token=0.01, s_per_pass=1.0)
    assert slow.timeout_s(400) == pytest.approx(10 * (1.0 + 4.0))


@pytest.mark.parametrize(
    "flag", ["--draft-wait-ms=-1", "--min-step-timeout-s=0", "--step-timeout-factor=-1"]
)
async def test_impossible_times_stop_the_start(
    flag: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        parse_settings(OrchestratorSettings, ["--verifier=127.0.0.1:1", flag])
    assert flag.split("=")[0] in capsys.readouterr().err
