"""11. Open.mode is GREEDY, COUPLED or RATIO and never changes within a sequence."""

import grpc
import pytest

from outrider.serving.channel import open_channel
from outrider.v1 import common_pb2, drafter_pb2_grpc, verifier_pb2, verifier_pb2_grpc
from tests.conformance.conftest import Worker
from tests.conformance.wire import SAMPLED, draft_stream, verify_stream

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.integration]


@pytest.mark.parametrize("mode", [common_pb2.MODE_UNSPECIFIED, 17])
async def test_an_unknown_mode_is_refused(verifier: Worker, drafter: Worker, mode: int) -> None:
    for stream in (
        verify_stream(verifier.address, mode=mode),
        draft_stream(drafter.address, mode=mode),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async with stream:
                pass
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "mode" in str(caught.value.details())


async def test_a_second_open_is_refused(verifier: Worker) -> None:
    async with verify_stream(verifier.address, sampling=SAMPLED) as stream:
        second = verifier_pb2.VerifyOpen(mode=common_pb2.MODE_GREEDY)
        await stream.call.write(verifier_pb2.VerifyRequest(open=second))
        with pytest.raises(grpc.aio.AioRpcError):
            await stream.call.read()
        assert await stream.call.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_a_stream_without_any_message_is_refused(verifier: Worker, drafter: Worker) -> None:
    for worker, stub, rpc in (
        (verifier, verifier_pb2_grpc.VerifierServiceStub, "Verify"),
        (drafter, drafter_pb2_grpc.DrafterServiceStub, "Draft"),
    ):
        async with open_channel(worker.address) as channel:
            call = getattr(stub(channel), rpc)()
            await call.done_writing()
            assert await call.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert "kind" in str(await call.details())
