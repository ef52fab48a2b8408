"""24, for sources: a draft source that nobody offers is refused by name."""

from pathlib import Path

import grpc
import pytest

from drafter_svc.__main__ import open_drafter
from drafter_svc.settings import DrafterSettings
from outrider.client import generate_request
from outrider.sampling import SamplingParams
from tests.cluster import cluster
from verifier_svc.__main__ import open_verifier
from verifier_svc.settings import VerifierSettings

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.integration]


async def test_a_misspelt_source_is_refused_and_the_known_ones_named(toy: Path) -> None:
    verifier = VerifierSettings(model=str(toy), dtype="float32")
    drafter = DrafterSettings()
    async with cluster(
        verifiers=[lambda: open_verifier(verifier)], drafters=[lambda: open_drafter(drafter)]
    ) as services:
        sampling = SamplingParams(temperature=0.0, max_tokens=4)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await services.client.generate(
                generate_request([1, 2, 3], sampling, sources=["nosuch"])
            )
        assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "nosuch" in str(caught.value.details())
        assert "ngram" in str(caught.value.details())
        known = generate_request([1, 2, 3], sampling, sources=["nosuch", "ngram"])
        assert len((await services.client.generate(known)).token_ids) == 4
