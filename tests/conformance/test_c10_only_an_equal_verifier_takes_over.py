"""10. A sequence is pinned to one identity.

Without an equal verifier the client gets UNAVAILABLE.
"""

from pathlib import Path

import grpc
import pytest

from outrider.client import generate_request
from outrider.sampling import SamplingParams
from tests.cluster import cluster
from tests.conformance.hung import Counted, hanging_after
from verifier_svc.__main__ import open_verifier
from verifier_svc.settings import VerifierSettings

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.integration]


async def test_other_weights_under_the_same_name_never_take_over(toy: Path, other: Path) -> None:
    mine = VerifierSettings(model=str(toy), dtype="float32", name="same")
    others = VerifierSettings(model=str(other), dtype="float32", name="same")
    # Which of the two is judged first, and so serves, is open: both fall silent.
    hanging = hanging_after(5, lambda: open_verifier(mine), Counted())
    other_hanging = hanging_after(5, lambda: open_verifier(others), Counted())
    async with cluster(
        verifiers=[hanging, other_hanging],
        min_step_timeout_s=0.5,
        step_timeout_factor=0.01,
    ) as services:
        states = {worker.state for worker in services.workers}
        assert states == {"ready", "refused"}
        refused = next(worker for worker in services.workers if worker.state == "refused")
        assert "digests" in refused.reason
        seen: list[int] = []

        async def read() -> None:
            request = generate_request([1, 2, 3], SamplingParams(temperature=0.0, max_tokens=20))
            async for response in services.client.stream(request):
                seen.extend(response.chunk.token_ids)

        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await read()
        assert len(seen) == 5
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        details = dict(caught.value.trailing_metadata())
        assert b"RetryInfo" in details["grpc-status-details-bin"]


async def test_another_dtype_is_another_identity(toy: Path) -> None:
    single = VerifierSettings(model=str(toy), dtype="float32", name="same")
    half = VerifierSettings(model=str(toy), dtype="bfloat16", name="same")
    async with cluster(
        verifiers=[lambda: open_verifier(single), lambda: open_verifier(half)]
    ) as services:
        reasons = [w.reason for w in services.workers if w.state == "refused"]
        assert len(reasons) == 1
        assert "numerics" in reasons[0]
