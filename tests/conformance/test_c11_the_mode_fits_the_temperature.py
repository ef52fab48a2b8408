"""11. A mode that the sampling parameters contradict is refused at open, and holds no lease."""

import grpc
import pytest

from outrider.sampling import SamplingParams
from outrider.serving.channel import open_channel
from outrider.v1 import common_pb2, worker_pb2, worker_pb2_grpc
from tests.conformance.conftest import Worker
from tests.conformance.wire import draft_stream, verify_stream

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.integration]
COUPLED = common_pb2.MODE_COUPLED


async def num_leases(worker: Worker) -> int:
    async with open_channel(worker.address) as channel:
        stub = worker_pb2_grpc.WorkerServiceStub(channel)
        answer = await stub.GetLoads(worker_pb2.GetLoadsRequest())
        return answer.load.num_running_reqs


async def test_coupled_at_temperature_0(verifier: Worker, drafter: Worker) -> None:
    greedy = SamplingParams(temperature=0.0, seed=1)
    for stream in (
        verify_stream(verifier.address, sampling=greedy, mode=COUPLED),
        draft_stream(drafter.address, sampling=greedy, mode=COUPLED),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async with stream:
                pass
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "open.mode" in str(caught.value.details())
    assert await num_leases(verifier) == await num_leases(drafter) == 0


@pytest.mark.parametrize("name", ["temperature", "top_p", "logprobs"])
async def test_parameters_that_are_refused_hold_no_lease(
    verifier: Worker, drafter: Worker, name: str
) -> None:
    class Bad:
        """Parameters that the orchestrator would never send."""

        seed, key = 1, 1

        def to_proto(self) -> common_pb2.SamplingParams:
            return common_pb2.SamplingParams(**{name: 1000})

    for stream in (
        verify_stream(verifier.address, sampling=Bad(), mode=COUPLED),  # type: ignore[arg-type]
        draft_stream(drafter.address, sampling=Bad(), mode=COUPLED),  # type: ignore[arg-type]
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async with stream:
                pass
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert f"sampling_params.{name}" in str(caught.value.details())
    assert await num_leases(verifier) == await num_leases(drafter) == 0
