"""3. The orchestrator compares every stated cache_length; a difference is counted and healed."""

from collections.abc import Callable, Iterable

import pytest

from outrider.client import generate_request
from outrider.sampling import SamplingParams
from outrider.v1 import verifier_pb2
from tests.cluster import cluster
from tests.conformance.conftest import Worker
from tests.conformance.relay import relay

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.integration]
PROMPT = [10, 20, 10, 20, 10]
SAMPLING = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
LIES: dict[str, Callable[[int], int]] = {
    "nothing is left": lambda length: 0,
    "one is missing": lambda length: length - 1,
    "there is more": lambda length: length + 3,
    "the largest number": lambda length: 2**32 - 1,
}


@pytest.mark.parametrize("lie", LIES)
async def test_every_difference_is_counted_and_the_output_is_right(
    verifier: Worker, lie: str
) -> None:
    starts: list[int] = []

    def understand(message: bytes) -> Iterable[bytes]:
        request = verifier_pb2.VerifyRequest.FromString(message)
        if request.WhichOneof("kind") == "step":
            starts.append(request.step.start)
        return (message,)

    def tell(message: bytes) -> Iterable[bytes]:
        response = verifier_pb2.VerifyResponse.FromString(message)
        if response.WhichOneof("kind") == "verdict":
            response.verdict.cache_length = LIES[lie](response.verdict.cache_length)
        return (response.SerializeToString(),)

    request = generate_request(PROMPT, SAMPLING, target_only=True, cache_salt=lie)
    async with cluster(verifiers=[relay(verifier.address, "Verify")]) as honest:
        expected = await honest.client.generate(request)
    assert expected.complete.receipt.num_ledger_heals == 0
    liar = relay(verifier.address, "Verify", requests=understand, responses=tell)
    async with cluster(verifiers=[liar]) as services:
        output = await services.client.generate(request)
    assert output.token_ids == expected.token_ids
    assert output.complete.receipt.num_ledger_heals == len(starts) == 12
    # The ids from the smaller length on are sent again.
    lengths = [len(PROMPT) + n for n in range(11)]
    assert starts == [0, *(min(length, LIES[lie](length)) for length in lengths)]
