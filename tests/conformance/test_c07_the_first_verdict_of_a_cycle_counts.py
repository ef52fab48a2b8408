"""7. The orchestrator commits the first verdict of a cycle and ignores any other."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from outrider.client import generate_request
from outrider.sampling import SamplingParams
from outrider.v1 import verifier_pb2
from tests.cluster import VERIFIER_NAMES, cluster, serving
from tests.conformance.conftest import Worker
from tests.conformance.relay import relay
from verifier_svc.__main__ import open_verifier
from verifier_svc.settings import VerifierSettings

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.integration]
PROMPT = [10, 20, 10, 20, 10]
SAMPLING = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)


async def test_later_verdicts_of_a_cycle_change_nothing(verifier: Worker) -> None:
    doubled = 0

    def say_it_twice(message: bytes) -> Iterable[bytes]:
        nonlocal doubled
        response = verifier_pb2.VerifyResponse.FromString(message)
        yield message
        if response.WhichOneof("kind") == "verdict":
            doubled += 1
            other = verifier_pb2.VerifyResponse()
            other.CopyFrom(response)
            other.verdict.next_token_id = (other.verdict.next_token_id + 1) % 500
            other.verdict.cache_length = 0
            yield other.SerializeToString()
            needed = verifier_pb2.VerifyResponse()
            needed.context_needed.cycle = response.verdict.cycle
            yield needed.SerializeToString()

    request = generate_request(PROMPT, SAMPLING, num_draft_tokens=3)
    async with cluster(verifiers=[relay(verifier.address, "Verify")]) as honest:
        expected = await honest.client.generate(request)
    twice = relay(verifier.address, "Verify", responses=say_it_twice)
    async with cluster(verifiers=[twice]) as services:
        output = await services.client.generate(request)
    assert doubled >= output.complete.receipt.num_target_passes > 1
    assert output.token_ids == expected.token_ids
    assert output.complete.receipt.num_ledger_heals == 0
    assert output.complete.receipt.num_failovers == 0


async def test_a_step_that_arrives_twice_is_answered_twice_alike(toy: Path) -> None:
    """The network may repeat a message; the second verdict is of a cycle that is over."""
    settings = VerifierSettings(model=str(toy), dtype="float32")
    answers: dict[int, set[tuple[int, ...]]] = {}

    def note(message: bytes) -> Iterable[bytes]:
        response = verifier_pb2.VerifyResponse.FromString(message)
        if response.WhichOneof("kind") == "verdict":
            verdict = response.verdict
            key = (*verdict.accepted_nodes, verdict.next_token_id, verdict.cache_length)
            answers.setdefault(verdict.cycle, set()).add(key)
        yield message

    def twice(message: bytes) -> Iterable[bytes]:
        yield message
        if verifier_pb2.VerifyRequest.FromString(message).WhichOneof("kind") == "step":
            yield message

    async with serving(VERIFIER_NAMES, lambda: open_verifier(settings)) as address:
        through = relay(address, "Verify", requests=twice, responses=note)
        async with cluster(verifiers=[through]) as services:
            request = generate_request(PROMPT, SAMPLING, num_draft_tokens=3)
            output = await services.client.generate(request)
            plain = await services.client.generate(generate_request(PROMPT, SAMPLING))
    assert output.token_ids == plain.token_ids
    assert len(answers) > 1
    assert all(len(alike) == 1 for alike in answers.values())
