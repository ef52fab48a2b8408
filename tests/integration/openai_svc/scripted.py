"""An orchestrator that says what a test wrote, through the real server and its interceptor."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import grpc

from outrider.v1 import common_pb2, generation_pb2_grpc
from outrider.v1 import generation_pb2 as pb
from tests.cluster import serving
from tests.openai_door import front_door

NAMES = ("outrider.v1.GenerationService",)
EOS = 9
# Ids by what they stand for; the third and fourth make one character.
TOKENS = {1: b"<s>", 2: b"he", 3: b"\xc3", 4: b"\xa9", 5: b" you", 6: b"!"}

Step = pb.GenerateResponse | Exception | asyncio.Event


@dataclass(slots=True)
class Orchestrator(generation_pb2_grpc.GenerationServiceServicer):
    """Plays its script to every request; an event in it is waited for."""

    script: Sequence[Step] = ()
    hangs_at: str = "nothing"
    """The prompt that is never answered."""
    requests: list[pb.GenerateRequest] = field(default_factory=list)
    metadata: list[dict[str, str]] = field(default_factory=list)
    num_detokenized: int = 0
    hung: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when that prompt has come."""
    was_asked: asyncio.Event = field(default_factory=asyncio.Event)
    was_cancelled: asyncio.Event = field(default_factory=asyncio.Event)

    async def Generate(
        self, request: pb.GenerateRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[pb.GenerateResponse]:
        self.requests.append(request)
        self.was_asked.set()
        self.metadata.append(dict(context.invocation_metadata()))
        try:
            if request.text == self.hangs_at:
                self.hung.set()
                await asyncio.Event().wait()
            for step in self.script:
                if isinstance(step, Exception):
                    raise step
                if isinstance(step, asyncio.Event):
                    await step.wait()
                else:
                    yield step
        except asyncio.CancelledError:
            self.was_cancelled.set()
            raise

    @property
    def request_ids(self) -> list[str]:
        """The ids that the requests came with."""
        return [each["x-request-id"] for each in self.metadata]

    async def GetModelInfo(
        self, request: pb.GetModelInfoRequest, context: grpc.aio.ServicerContext
    ) -> pb.GetModelInfoResponse:
        digests = common_pb2.IdentityDigests(tokenizer_digest="d")
        return pb.GetModelInfoResponse(
            identity=common_pb2.ModelIdentity(name="only", digests=digests)
        )

    async def GetServerInfo(
        self, request: pb.GetServerInfoRequest, context: grpc.aio.ServicerContext
    ) -> pb.GetServerInfoResponse:
        def worker(role: str, state: str, name: str) -> pb.WorkerInfo:
            identity = common_pb2.ModelIdentity(name=name, max_context_length=64)
            return pb.WorkerInfo(role=role, state=state, identity=identity)

        return pb.GetServerInfoResponse(
            started_at_s=12.5,
            workers=[
                worker("verifier", "ready", "org/b"),
                worker("verifier", "suspect", "a"),
                worker("verifier", "ready", "a"),
                worker("verifier", "lost", "gone"),
                worker("drafter", "ready", "draft"),
            ],
        )

    async def Tokenize(
        self, request: pb.TokenizeRequest, context: grpc.aio.ServicerContext
    ) -> pb.TokenizeResponse:
        return pb.TokenizeResponse(token_ids=[1, *(i for i in TOKENS if i > 1)])

    async def Detokenize(
        self, request: pb.DetokenizeRequest, context: grpc.aio.ServicerContext
    ) -> pb.DetokenizeResponse:
        self.num_detokenized += len(request.token_ids)
        token_bytes = [TOKENS[i] for i in request.token_ids]
        text = b"".join(token_bytes).decode(errors="replace")
        return pb.DetokenizeResponse(text=text, token_bytes=token_bytes)


@dataclass(slots=True)
class Stage:
    """The scripted orchestrator and the front door before it."""

    orchestrator: Orchestrator
    url: str


@asynccontextmanager
async def open_stage(*script: Step, **settings: object) -> AsyncIterator[Stage]:
    """Serve a script; in it an OutriderError ends the call with its code."""
    orchestrator = Orchestrator(script)

    @asynccontextmanager
    async def open_service():  # type: ignore[no-untyped-def]
        yield lambda server: generation_pb2_grpc.add_GenerationServiceServicer_to_server(
            orchestrator, server
        )

    async with (
        serving(NAMES, open_service) as address,
        front_door(address, **settings) as url,
    ):
        yield Stage(orchestrator, url)


def logprob(token_id: int, value: float, **top: float) -> common_pb2.TokenLogprobs:
    """Log probabilities of a position; ``top`` by id, as t5=-0.5."""
    return common_pb2.TokenLogprobs(
        token_id=token_id,
        logprob=value,
        top_ids=[int(name[1:]) for name in top],
        top_logprobs=top.values(),
    )


def chunk(*pieces: str, index: int = 0, ids: Sequence[int] = (), **others) -> pb.GenerateResponse:  # type: ignore[no-untyped-def]
    """A chunk of these pieces."""
    grown = pb.GenerateChunk(
        text="".join(pieces), pieces=pieces, index=index, token_ids=ids or [2] * len(pieces)
    )
    grown.MergeFrom(pb.GenerateChunk(**others))
    return pb.GenerateResponse(chunk=grown)


def complete(
    index: int = 0, reason: int = pb.FINISH_REASON_STOP, tokens: int = 2, **others: object
) -> pb.GenerateResponse:
    """The end of a choice."""
    receipt = pb.Receipt(
        request_id="r",
        decision="on",
        rule="coupled",
        seed=7,
        num_spec_steps=2,
        num_draft_tokens=8,
        num_accepted_draft_tokens=3,
        mean_acceptance_length=2.5,
        num_target_passes=4,
        target=common_pb2.ModelIdentity(eos_token_ids=[EOS]),
    )
    return pb.GenerateResponse(
        complete=pb.GenerateComplete(
            index=index,
            finish_reason=reason,
            prompt_tokens=5,
            cached_tokens=4,
            completion_tokens=tokens,
            receipt=receipt,
            **others,
        )
    )
