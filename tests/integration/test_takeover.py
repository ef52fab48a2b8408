"""Case 48: a verifier dies in mid-stream, and the client reads on without gap or repeat."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

import grpc
import pytest

from outrider.client import Choice, Output, generate_request
from outrider.sampling import SamplingParams
from outrider.v1 import generation_pb2 as pb
from outrider.v1 import verifier_pb2
from tests import table_model
from tests.cluster import cluster
from tests.statistical.law import TableLaw
from tests.table_model import VOCAB_SIZE, table_drafter, table_verifier
from verifier_svc.lease import VerifierLease
from verifier_svc.servicer import VerifierServicer

pytestmark = pytest.mark.integration

LAW = TableLaw.random(VOCAB_SIZE, seed=1)
DRAFT = TableLaw(LAW.logits + TableLaw.random(VOCAB_SIZE, seed=2, scale=0.5).logits)
PROMPT = [1, 2, 3]
SAMPLINGS = {
    "greedy": SamplingParams(temperature=0.0, max_tokens=30),
    "coupled": SamplingParams(temperature=1.0, seed=8, max_tokens=30),
    "min_tokens": SamplingParams(
        temperature=1.0, seed=8, max_tokens=30, min_tokens=15, stop_token_ids=(0, 1, 2)
    ),
}


class Mortal(VerifierServicer):
    """Dies at one step of its life, with every lease that it holds, and stays dead."""

    dies_at = 0
    num_steps = 0

    async def _step(
        self, lease: VerifierLease, request: verifier_pb2.VerifyRequest
    ) -> Iterable[verifier_pb2.VerifyResponse]:
        type(self).num_steps += 1
        if type(self).num_steps > type(self).dies_at:
            raise RuntimeError("out of order")
        return await VerifierServicer._step(self, lease, request)


@pytest.fixture
def mortal(monkeypatch: pytest.MonkeyPatch):
    """Make the verifiers that are opened in its scope mortal."""

    def dying_at(num_steps: int):
        class Dying(Mortal):
            dies_at = num_steps

        opened = table_verifier(LAW)

        def open_service():
            monkeypatch.setattr(table_model, "VerifierServicer", Dying)
            return opened()

        return open_service, Dying

    return dying_at


def immortal(monkeypatch: pytest.MonkeyPatch):
    opened = table_verifier(LAW)

    def open_service():
        monkeypatch.setattr(table_model, "VerifierServicer", VerifierServicer)
        return opened()

    return open_service


async def ask(running, sampling: SamplingParams, *, drafts: bool) -> Output:
    request = generate_request(
        PROMPT, sampling, sources=["model"] if drafts else [], target_only=not drafts
    )
    return await running.client.generate(request, timeout_s=20)


async def unbroken(sampling: SamplingParams) -> Output:
    async with cluster(verifiers=[table_verifier(LAW)]) as running:
        return await ask(running, sampling, drafts=False)


def streamed(output: Output | Choice) -> list[int]:
    return [token_id for chunk in output.chunks for token_id in chunk.token_ids]


@pytest.mark.parametrize("name", SAMPLINGS)
@pytest.mark.parametrize("dies_at", [0, 1, 3, 7])
@pytest.mark.parametrize("drafts", [False, True])
async def test_the_stream_goes_on(monkeypatch, mortal, name, dies_at, drafts):
    """At 0 it dies while it reads the prompt."""
    sampling = SAMPLINGS[name]
    expected = await unbroken(sampling)
    dying, kind = mortal(dies_at)
    async with cluster(
        verifiers=[dying, immortal(monkeypatch)],
        drafters=[table_drafter(DRAFT)],
        draft_wait_ms=5_000,
    ) as running:
        outputs = [await ask(running, sampling, drafts=drafts) for _ in range(3)]
    for output in outputs:
        assert output.token_ids == streamed(output) == expected.token_ids
        assert output.text == expected.text
        assert output.complete.finish_reason == expected.complete.finish_reason
        assert output.complete.WhichOneof("matched_stop") == expected.complete.WhichOneof(
            "matched_stop"
        )
    failovers = sum(output.complete.receipt.num_failovers for output in outputs)
    assert failovers > 0 or kind.num_steps <= dies_at


@pytest.mark.parametrize("dies_at", [0, 1, 9, 20])
async def test_every_choice_goes_on(monkeypatch, mortal, dies_at):
    """All hold leases on the verifier that dies; each is moved by itself."""
    sampling = replace(SAMPLINGS["coupled"], n=3)
    async with cluster(verifiers=[table_verifier(LAW)]) as running:
        expected = await ask(running, sampling, drafts=False)
    dying, kind = mortal(dies_at)
    async with cluster(verifiers=[dying, immortal(monkeypatch)]) as running:
        outputs = [await ask(running, sampling, drafts=False) for _ in range(2)]
    for output in outputs:
        for choice, one in zip(output.choices, expected.choices, strict=True):
            assert choice.token_ids == streamed(choice) == one.token_ids
            assert choice.complete.receipt.seed == one.complete.receipt.seed
    receipts = [choice.complete.receipt for output in outputs for choice in output.choices]
    assert sum(receipt.num_failovers for receipt in receipts) > 0 or kind.num_steps <= dies_at


@pytest.mark.parametrize("dies_at", [0, 1, 10])
async def test_choices_end_together_with_one_status(mortal, dies_at):
    """The first while it reads the prompt, before it has told the others; or any of them later."""
    dying, _ = mortal(dies_at)
    sampling = replace(SAMPLINGS["coupled"], n=3)
    received: defaultdict[int, list[int]] = defaultdict(list)

    async def read(running) -> None:
        request = generate_request(PROMPT, sampling, target_only=True)
        async for response in running.client.stream(request, timeout_s=20):
            assert response.WhichOneof("kind") == "chunk", "none had come to its end"
            received[response.chunk.index] += response.chunk.token_ids

    async with cluster(verifiers=[table_verifier(LAW)]) as running:
        expected = await ask(running, sampling, drafts=False)
    async with cluster(verifiers=[dying]) as running:
        with pytest.raises(grpc.aio.AioRpcError, match="no equal one is ready") as caught:
            await read(running)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    # What was decided was told, but for verdicts on their way to the two others.
    assert 0 <= dies_at - sum(map(len, received.values())) <= 2
    for index, ids in received.items():
        assert ids == expected.choices[index].token_ids[: len(ids)]


async def test_a_stop_string_across_the_cut_is_found(monkeypatch, mortal):
    """The text before the cut and behind it are one."""
    plain = await unbroken(SAMPLINGS["coupled"])
    pieces = [piece for chunk in plain.chunks for piece in chunk.pieces]
    for dies_at in range(2, 8):
        stop = "".join(pieces[dies_at - 1 : dies_at + 1])
        sampling = replace(SAMPLINGS["coupled"], stop=(stop,))
        expected = await unbroken(sampling)
        dying, _ = mortal(dies_at)
        async with cluster(verifiers=[dying, immortal(monkeypatch)]) as running:
            output = await ask(running, sampling, drafts=False)
        assert output.text == expected.text, dies_at
        assert output.complete.matched_stop_str == stop
        assert expected.complete.finish_reason == pb.FINISH_REASON_STOP


async def test_with_nobody_to_go_on_the_stream_ends_and_says_so(mortal):
    dying, _ = mortal(7)
    received: list[int] = []
    expected = await unbroken(SAMPLINGS["greedy"])

    async def read(running) -> None:
        request = generate_request(PROMPT, SAMPLINGS["greedy"], target_only=True)
        async for response in running.client.stream(request, timeout_s=20):
            received.extend(response.chunk.token_ids)

    async with cluster(verifiers=[dying]) as running:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await read(running)
    assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
    assert received == expected.token_ids[: len(received)], "what was streamed stays valid"
    assert len(received) == 7
