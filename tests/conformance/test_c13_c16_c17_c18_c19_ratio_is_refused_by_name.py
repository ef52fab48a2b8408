"""13, 16 to 19 rule the mode RATIO, which is not built: both workers refuse it by name."""

import grpc
import pytest

from outrider.v1 import common_pb2
from tests.conformance.conftest import Worker
from tests.conformance.wire import SAMPLED, draft_stream, verify_stream

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.integration]


async def test_neither_worker_opens_a_ratio_sequence(verifier: Worker, drafter: Worker) -> None:
    for stream in (
        verify_stream(verifier.address, sampling=SAMPLED, mode=common_pb2.MODE_RATIO),
        draft_stream(drafter.address, sampling=SAMPLED, mode=common_pb2.MODE_RATIO),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            async with stream:
                pass
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "RATIO is not supported" in str(caught.value.details())
