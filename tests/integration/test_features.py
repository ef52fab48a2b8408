"""Hidden states of the target reach drafters that ask, each position once, and change nothing."""

from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import numpy.typing as npt
import pytest
import pytest_asyncio
import torch
from transformers import AutoModelForCausalLM

from drafter_svc import __main__ as drafter_main
from outrider.client import generate_request
from outrider.features import MAX_CHUNK_BYTES, Features
from outrider.sampling import AcceptanceRule, SamplingParams
from outrider.v1 import common_pb2, drafter_pb2, verifier_pb2
from tests.cluster import DRAFTER_NAMES, VERIFIER_NAMES, cluster, serving
from tests.conformance.relay import relay
from tests.conformance.wire import VerifyStream, draft_stream, verify_stream
from tests.integration.recording import (
    CHAIN,
    TREE,
    Record,
    RecordingSource,
    open_recording,
    recording_sources,
)
from tests.integration.scripted import Book
from tests.integration.stage import DRAFT_WAIT_MS, Stage, assert_parity, fallbacks, open_stage
from tests.integration.test_deaf_drafter import Deaf
from tests.statistical.law import TableLaw
from tests.table_model import VOCAB_SIZE, table_verifier
from tests.toy import save_toy
from verifier_svc.__main__ import open_verifier
from verifier_svc.settings import VerifierSettings

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

HIDDEN, LAYERS = 64, (2, 0)  # of the toy: what its head reads, and its embeddings
WIDTH = HIDDEN * len(LAYERS)
GREEDY = SamplingParams(temperature=0.0, max_tokens=30, ignore_eos=True)
SAMPLED = SamplingParams(temperature=1.0, max_tokens=30, seed=11, ignore_eos=True)
WIDE_HIDDEN, WIDE_LAYERS = 512, (0, 1, 2)
LONG_PROMPT = [1 + 7 * i % 400 for i in range(3000)]
PROMPT = [20 + 7 * i % 400 for i in range(150)]


def verifier_of(folder: Path) -> VerifierSettings:
    return VerifierSettings(model=str(folder), dtype="float32", num_threads=1)


@dataclass(slots=True)
class Model:
    """The target as transformers runs it."""

    folder: Path
    module: Any = field(init=False)

    def __post_init__(self) -> None:
        self.module = AutoModelForCausalLM.from_pretrained(self.folder, dtype=torch.float32)

    def states(self, ids: Sequence[int], layers: Sequence[int] = LAYERS) -> torch.Tensor:
        """Return [len(ids), layers * hidden] float32."""
        with torch.inference_mode():
            states = self.module(torch.tensor([list(ids)]), output_hidden_states=True).hidden_states
        return torch.cat([states[layer][0] for layer in layers], dim=1)


def assert_close(got: npt.NDArray[np.uint16], expected: torch.Tensor) -> None:
    """Equal up to bfloat16's rounding; ``got`` are its bit patterns."""
    numbers = torch.from_numpy(got.view(np.int16).copy()).view(torch.bfloat16).float()
    assert torch.allclose(numbers, expected, rtol=2**-7, atol=2e-3)


@pytest.fixture(scope="module")
def model(toy: Path) -> Model:
    return Model(toy)


@dataclass(slots=True)
class Scene:
    """A stage with drafters that record."""

    stage: Stage
    sources: dict[str, RecordingSource]

    def last_record(self, source: str) -> Record:
        return self.sources[source].records[-1]


@asynccontextmanager
async def opened_scene(
    folder: Path,
    layers: Sequence[int] = LAYERS,
    hidden_size: int = HIDDEN,
    draft_wait_ms: float = DRAFT_WAIT_MS,
) -> AsyncIterator[Scene]:
    sources = recording_sources(Book(), layers, hidden_size)
    opener = lambda: open_recording(sources)  # noqa: E731
    async with open_stage(
        [verifier_of(folder)], drafters=[opener], draft_wait_ms=draft_wait_ms
    ) as stage:
        for source in sources:
            source.book = stage.book
        yield Scene(stage, {source.name: source for source in sources})


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scene(toy: Path) -> AsyncIterator[Scene]:
    async with opened_scene(toy) as opened:
        yield opened


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "coupled"])
@pytest.mark.parametrize("source", [CHAIN, TREE])
async def test_every_committed_position_arrives_once_and_in_order(
    scene: Scene, model: Model, source: str, sampling: SamplingParams
):
    plain = await scene.stage.plain(PROMPT, sampling, salt="plain")
    output = await scene.stage.speculated(
        PROMPT, sampling, drafter=source, salt=f"{source} {sampling.temperature}"
    )
    assert_parity(output, plain)
    receipt, record = output.complete.receipt, scene.last_record(source)
    assert receipt.num_accepted_draft_tokens > 0
    assert not {"drafter_lost", "drafter_refused"} & fallbacks(output).keys()
    ids = [*PROMPT, *output.token_ids]
    # All that was read, which is all but the last token; the last cycle's came too late to be used.
    assert receipt.num_feature_bytes == 2 * WIDTH * (len(ids) - 1)
    assert len(PROMPT) + 1 < len(record.positions) < len(ids)
    assert record.positions == list(range(len(record.positions)))
    assert_close(record.values, model.states(ids)[: len(record.positions)])
    # No draft but the first, during which the prompt is read, goes without the newest ones.
    assert record.ends[0] == (len(PROMPT), 0)
    assert all(known == base - 1 for base, known in record.ends[1:])


async def test_in_ratio_too(scene: Scene):
    request = generate_request(
        PROMPT,
        SAMPLED,
        sources=[CHAIN],
        num_draft_tokens=4,
        acceptance_rule=AcceptanceRule.REJECTION,
    )
    output = await scene.stage.client.generate(request, timeout_s=50)
    record = scene.last_record(CHAIN)
    assert output.complete.receipt.num_feature_bytes > 0
    assert record.positions == list(range(len(record.positions)))


async def test_what_the_prefix_cache_serves_has_none(scene: Scene):
    first = await scene.stage.speculated(PROMPT, GREEDY, drafter=CHAIN, salt="twice")
    second = await scene.stage.speculated(PROMPT, GREEDY, drafter=CHAIN, salt="twice")
    assert_parity(second, first)
    positions = scene.last_record(CHAIN).positions
    assert positions[0] == len(PROMPT) // 16 * 16
    assert positions == list(range(positions[0], positions[-1] + 1))


async def test_who_does_not_ask_gets_none(scene: Scene):
    output = await scene.stage.speculated(PROMPT, GREEDY, drafter="oracle")
    assert output.complete.receipt.num_feature_bytes == 0


async def features_and_answer(
    stream: VerifyStream, **step: Any
) -> tuple[list[Features], verifier_pb2.Verdict]:
    """Play a step that asks for features."""
    spec = common_pb2.FeatureSpec(layers=LAYERS)
    response = await stream.step(**step, features=spec)
    chunks = []
    while response.WhichOneof("kind") == "features":
        chunk = Features.from_proto(response.features, WIDTH)
        assert chunk is not None
        chunks.append(chunk)
        response = await stream.call.read()
    return chunks, response.verdict


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def verifier(toy: Path) -> AsyncIterator[str]:
    async with serving(VERIFIER_NAMES, lambda: open_verifier(verifier_of(toy))) as address:
        yield address


async def test_a_verifier_answers_with_what_it_computes_and_commits(verifier: str, model: Model):
    ids = PROMPT[:40]
    async with verify_stream(verifier, salt="wire", num_prompt_tokens=40) as stream:
        [chunk], verdict = await features_and_answer(stream, ids=ids)
        assert (chunk.start, chunk.end, verdict.cache_length) == (0, 40, 40)
        assert_close(chunk.values, model.states(ids))
        [again], repeated = await features_and_answer(stream, ids=ids, cycle=1)
        assert (again.start, again.end) == (39, 40)
        assert repeated.next_token_id == verdict.next_token_id

        # A tree of which one path, not the first, is the target's own.
        truth, known = [verdict.next_token_id], [*ids]
        async with verify_stream(verifier, salt="truth", num_prompt_tokens=40) as other:
            for _ in range(3):
                answer = (await other.step([*ids, *truth])).verdict
                truth.append(answer.next_token_id)
        known.append(truth[0])
        tree = common_pb2.Draft(
            token_ids=[truth[1] ^ 1, truth[1], truth[2] ^ 1, truth[2], 5],
            parents=[-1, -1, 1, 1, 3],
        )
        [chunk], verdict = await features_and_answer(stream, ids=known, start=40, draft=tree)
        assert list(verdict.accepted_nodes)[:2] == [1, 3]
        assert (chunk.start, chunk.end) == (40, verdict.cache_length)
        known += [tree.token_ids[node] for node in verdict.accepted_nodes]
        assert_close(chunk.values, model.states(known)[40:])

        # A rejected draft leaves nothing but the row before it.
        known.append(verdict.next_token_id)
        wrong = common_pb2.Draft(token_ids=[3, 3], probe=[True, False])
        [chunk], verdict = await features_and_answer(
            stream, ids=known, start=len(known) - 1, draft=wrong
        )
        assert not verdict.accepted_nodes
        assert (chunk.start, chunk.end) == (len(known) - 1, len(known))


@pytest.mark.parametrize(
    ("layers", "reason"),
    [
        ([3], "layer 3 is above 2"),
        ([0, 0], "names a layer twice"),
        (range(9), "9 layers, at most 8"),
        ([], "names no layer"),
    ],
)
async def test_a_verifier_refuses_layers_that_it_cannot_give(
    verifier: str, layers: Sequence[int], reason: str
):
    async with verify_stream(verifier) as stream:
        spec = common_pb2.FeatureSpec(layers=layers)
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.step([1, 2, 3], features=spec)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert caught.value.details() == f"step.features.layers: {reason}"


@pytest.mark.parametrize(
    ("source", "chunk", "reason"),
    [
        (CHAIN, common_pb2.FeatureChunk(values=bytes(2 * WIDTH + 2)), "features.values: 258 bytes"),
        (CHAIN, common_pb2.FeatureChunk(), "features.values: 0 bytes"),
        (
            CHAIN,
            common_pb2.FeatureChunk(start=2**32 - 1, values=bytes(2 * WIDTH)),
            "features.start: features of position 4294967295",
        ),
        ("asks-nothing", common_pb2.FeatureChunk(values=b"ab"), "features: source asks-nothing"),
    ],
)
async def test_a_drafter_refuses_chunks_that_do_not_fit(
    source: str, chunk: common_pb2.FeatureChunk, reason: str
):
    reading, _ = recording_sources(Book(), LAYERS, HIDDEN)
    plain = replace(reading, name="asks-nothing", feature_layers=(), feature_width=0)
    async with (
        serving(DRAFTER_NAMES, lambda: open_recording([reading, plain])) as address,
        draft_stream(address, sources=[source]) as stream,
    ):
        await stream.call.write(drafter_pb2.DraftRequest(features=chunk))
        if reason.startswith("features.start"):
            await stream.advance([1, 2, 3])
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.read()
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert str(caught.value.details()).startswith(reason)


def dropping(which: str) -> Any:
    """Return what becomes of the messages of a verifier on the way."""
    num_seen = 0

    def change(message: bytes) -> Iterable[bytes]:
        nonlocal num_seen
        response = verifier_pb2.VerifyResponse.FromString(message)
        if response.WhichOneof("kind") != "features":
            yield message
            return
        num_seen += 1
        if which == "cut":
            response.features.values = response.features.values[:-1]
            yield response.SerializeToString()
        elif which == "some" and num_seen % 2:
            yield message
        elif which == "twice":
            yield message
            yield message

    return change


@pytest.mark.parametrize("which", ["all", "some", "twice", "cut"])
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "coupled"])
async def test_features_that_are_lost_or_broken_change_nothing(
    verifier: str, which: str, sampling: SamplingParams
):
    book = Book()
    sources = recording_sources(book, LAYERS, HIDDEN)
    async with cluster(
        verifiers=[relay(verifier, "Verify", responses=dropping(which))],
        drafters=[lambda: open_recording(sources)],
        draft_wait_ms=10_000,
    ) as running:
        stage = Stage(running, book)
        plain = await stage.plain(PROMPT, sampling, salt="plain")
        salt = f"{which} {sampling.temperature}"
        output = await stage.speculated(PROMPT, sampling, drafter=CHAIN, salt=salt)
    assert_parity(output, plain)
    record, receipt = sources[0].records[0], output.complete.receipt
    if which == "all":
        assert (record.positions, receipt.num_feature_bytes) == ([], 0)
    if which == "some":
        assert 0 < len(set(record.positions)) < len(plain.token_ids) + len(PROMPT) - 2
    if which == "twice":
        assert record.positions[: len(PROMPT)] == record.positions[len(PROMPT) :][: len(PROMPT)]
    is_lost = bool({"drafter_lost", "drafter_refused"} & fallbacks(output).keys())
    assert is_lost == (which == "cut")


async def test_a_verifier_that_takes_over_gives_them_all_again(toy: Path, verifier: str):
    """Positions come twice then, with the same values."""
    verdicts = 0

    def dying(message: bytes) -> Iterable[bytes]:
        nonlocal verdicts
        verdicts += verifier_pb2.VerifyResponse.FromString(message).HasField("verdict")
        if verdicts == 5:
            verdicts += 1  # once, whichever of both it is
            raise RuntimeError("out of order")
        yield message

    book = Book()
    sources = recording_sources(book, LAYERS, HIDDEN)
    async with (
        serving(VERIFIER_NAMES, lambda: open_verifier(verifier_of(toy))) as second,
        cluster(
            verifiers=[relay(each, "Verify", responses=dying) for each in (verifier, second)],
            drafters=[lambda: open_recording(sources)],
            draft_wait_ms=10_000,
        ) as running,
    ):
        stage = Stage(running, book)
        request = generate_request(PROMPT, GREEDY, sources=[CHAIN], cache_salt="takeover")
        output = await stage.client.generate(request, timeout_s=40)
        assert_parity(output, await stage.plain(PROMPT, GREEDY, salt="plain"))
    record = sources[0].records[0]
    assert output.complete.receipt.num_failovers == 1
    assert record.positions.count(0) == 2
    assert sorted(set(record.positions)) == list(range(max(record.positions) + 1))
    seen: dict[int, bytes] = {}
    for at, values in zip(record.positions, record.values, strict=True):
        assert seen.setdefault(at, values.tobytes()) == values.tobytes()


@pytest.mark.parametrize("layers", [LAYERS, (0, 99)])
async def test_a_verifier_that_gives_none_is_not_asked(layers: tuple[int, ...]):
    law = TableLaw.random(VOCAB_SIZE, seed=1)
    book = Book()
    sources = recording_sources(book, layers, HIDDEN)
    async with cluster(
        verifiers=[table_verifier(law)],
        drafters=[lambda: open_recording(sources)],
        draft_wait_ms=10_000,
    ) as running:
        stage = Stage(running, book)
        plain = await stage.plain([1, 2, 3], GREEDY)
        output = await stage.speculated([1, 2, 3], GREEDY, drafter=CHAIN)
    assert_parity(output, plain)
    assert output.complete.receipt.num_accepted_draft_tokens > 0
    assert output.complete.receipt.num_feature_bytes == 0


async def test_a_wish_for_layers_that_are_not_there_fails_no_request(toy: Path):
    async with opened_scene(toy, (0, 99)) as scene:
        plain = await scene.stage.plain(PROMPT, GREEDY)
        output = await scene.stage.speculated(PROMPT, GREEDY, drafter=CHAIN)
    assert_parity(output, plain)
    assert output.complete.receipt.num_accepted_draft_tokens > 0
    assert output.complete.receipt.num_feature_bytes == 0


@pytest.fixture(scope="module")
def wide(models: Path) -> Path:
    """A target whose features are large: 3,072 bytes a position."""
    return save_toy(models / "wide", hidden_size=WIDE_HIDDEN, max_context_length=4096, scale=0.1)


async def test_a_long_prompt_comes_in_chunks(wide: Path):
    """Case 51: features of several times a message's usual limit of 4 MiB, none above 1 MiB."""
    async with opened_scene(wide, WIDE_LAYERS, WIDE_HIDDEN) as scene:
        sampling, prompt = replace(GREEDY, max_tokens=16), LONG_PROMPT
        plain = await scene.stage.plain(prompt, sampling, salt="plain")
        output = await scene.stage.speculated(prompt, sampling, drafter=TREE, salt="cold")
        record = scene.last_record(TREE)
    assert_parity(output, plain)
    assert output.complete.receipt.num_feature_bytes > 9_000_000 > 2 * (4 << 20)
    assert len(record.chunks) > 8
    assert all(chunk.num_bytes <= MAX_CHUNK_BYTES for chunk in record.chunks)
    assert record.positions == list(range(len(record.positions)))
    assert len(record.positions) > len(prompt)


async def test_a_drafter_that_does_not_read_holds_nothing_up(
    wide: Path, monkeypatch: pytest.MonkeyPatch
):
    """The prompt's features are more than gRPC buffers; nobody waits longer than for an advance."""
    monkeypatch.setattr(drafter_main, "DrafterServicer", Deaf)
    async with opened_scene(wide, WIDE_LAYERS, WIDE_HIDDEN, draft_wait_ms=0) as scene:
        sampling = replace(GREEDY, max_tokens=8)
        plain = await scene.stage.plain(LONG_PROMPT, sampling, salt="plain")
        request = generate_request(LONG_PROMPT, sampling, sources=[CHAIN], cache_salt="deaf")
        output = await scene.stage.client.generate(request, timeout_s=40)
    assert output.token_ids == plain.token_ids
    assert output.complete.receipt.num_feature_bytes > 0
    assert fallbacks(output)["drafter_lost"] > 0
