"""14. Draft distributions travel in every mode where the source has them, up to the verifier."""

from collections.abc import Iterable

import pytest

from outrider import wire
from outrider.client import generate_request
from outrider.sampling import SamplingParams
from outrider.v1 import common_pb2, drafter_pb2, verifier_pb2
from tests.cluster import cluster
from tests.conformance.conftest import Worker
from tests.conformance.relay import relay

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.integration]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
async def test_what_the_drafter_states_reaches_the_verifier_byte_by_byte(
    verifier: Worker, drafter: Worker, temperature: float
) -> None:
    stated: dict[tuple[int, ...], common_pb2.Draft] = {}
    received: list[common_pb2.Draft] = []

    def from_drafter(message: bytes) -> Iterable[bytes]:
        draft = drafter_pb2.DraftResponse.FromString(message).block.draft
        stated[tuple(draft.token_ids)] = draft
        return (message,)

    def to_verifier(message: bytes) -> Iterable[bytes]:
        step = verifier_pb2.VerifyRequest.FromString(message).step
        if step.draft.token_ids:
            received.append(step.draft)
        return (message,)

    async with cluster(
        verifiers=[relay(verifier.address, "Verify", requests=to_verifier)],
        drafters=[relay(drafter.address, "Draft", responses=from_drafter)],
        draft_wait_ms=10_000,
    ) as services:
        sampling = SamplingParams(temperature=temperature, seed=4, max_tokens=30, ignore_eos=True)
        request = generate_request([10, 20, 30], sampling, sources=["model"], num_draft_tokens=3)
        receipt = (await services.client.generate(request)).complete.receipt
    assert len(received) == receipt.num_spec_steps > 3
    for draft in received:
        num_tokens = len(draft.token_ids)
        assert len(draft.distributions) == len(draft.logit_margins) == num_tokens
        assert draft.source == "model"
        whole = next(ids for ids in stated if ids[:num_tokens] == tuple(draft.token_ids))
        assert list(draft.distributions) == list(stated[whole].distributions[:num_tokens])
        assert wire.validate_draft(draft, vocab_size=512, max_draft_tokens=3, max_depth=3) is None
