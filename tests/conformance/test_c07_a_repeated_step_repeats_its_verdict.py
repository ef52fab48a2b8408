"""7. A Step is (sequence, cycle).

Repeated, also on another equal worker, it gives the same verdict.
"""

from pathlib import Path

import pytest

from tests.cluster import VERIFIER_NAMES, serving
from tests.conformance.conftest import Worker
from tests.conformance.wire import GREEDY, SAMPLED, verify_stream
from verifier_svc.__main__ import open_verifier
from verifier_svc.settings import VerifierSettings

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.integration]
IDS = [10, 20, 30, 40]


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
async def test_a_step_can_be_repeated_here_and_elsewhere(
    verifier: Worker, toy: Path, sampling: object
) -> None:
    settings = VerifierSettings(model=str(toy), dtype="float32")
    decided = []
    async with serving(VERIFIER_NAMES, lambda: open_verifier(settings)) as elsewhere:
        for address in (verifier.address, elsewhere):
            async with verify_stream(address, sampling=sampling, salt="c07") as stream:
                for _ in range(2):
                    verdict = (await stream.step(IDS, draft=[1, 2, 3], cycle=9)).verdict
                    assert verdict.cycle == 9
                    decided.append((list(verdict.accepted_nodes), verdict.next_token_id))
                    first = verdict.next_token_id
                    again = (await stream.step(IDS, start=3, draft=[first, 5], cycle=10)).verdict
                    assert again.accepted_nodes[0] == 0
    assert len(set(map(str, decided))) == 1
