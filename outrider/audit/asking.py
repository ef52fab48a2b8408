"""Requests of an audit, and what came of them."""

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from outrider import wire
from outrider.audit.plan import Way
from outrider.client import Client, generate_request
from outrider.errors import OutriderError
from outrider.sampling import SamplingParams
from outrider.v1 import generation_pb2 as pb


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as the target reads it; ``number`` tells prompts apart."""

    number: int
    category: str
    token_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Ask:
    """One request."""

    prompt: Prompt
    way: Way
    sampling: SamplingParams


Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Drafted = tuple[Ints, Floats]
"""Ids, and the probabilities with which a draft token was one of them. Shapes: [N] both."""


@dataclass(frozen=True, slots=True)
class Answer:
    """A finished request. Units: milliseconds from sending, as the client saw them."""

    ask: Ask
    token_ids: tuple[int, ...]
    text: str
    accepted: tuple[int, ...]
    """Accepted tokens of every cycle that verified a draft, counted in the stream."""
    drafted: tuple[Drafted | None, ...]
    """What the draft token in the place of each token was drawn from, where there was one and the
    way is traced; empty else."""
    receipt: pb.Receipt
    first_ms: float
    total_ms: float

    @property
    def per_token_ms(self) -> float | None:
        """Mean time of a token behind the first; None where there is none."""
        num_later = len(self.token_ids) - 1
        return (self.total_ms - self.first_ms) / num_later if num_later > 0 else None


@dataclass(frozen=True, slots=True)
class Asker:
    """Sends requests, some at a time; ``told`` is called for each that has ended.

    Prefix caches are shared only by requests of one way and ``salt``, so that times compare.
    """

    client: Client
    model: str
    salt: str
    timeout_s: float
    told: Callable[[], None]

    async def ask(self, asks: Sequence[Ask], num_streams: int) -> list[Answer]:
        """Return the answers in the order of the requests.

        Raises: grpc.aio.AioRpcError if a request fails.
        """
        slots = asyncio.Semaphore(num_streams)

        async def one(ask: Ask) -> Answer:
            async with slots:
                answer = await self._one(ask)
            self.told()
            return answer

        tasks = [asyncio.create_task(one(ask)) for ask in asks]
        try:
            return list(await asyncio.gather(*tasks))
        finally:
            for task in tasks:  # of the others, if one failed
                task.cancel()

    async def margin(self, ask: Ask, output_ids: Sequence[int]) -> float:
        """Return the lead with which the target alone decides what follows an output."""
        request = self._request(ask, target_only=True)
        request.tokenized.input_ids.extend(output_ids)
        request.sampling_params.max_tokens = 1
        request.sampling_params.min_tokens = 0
        output = await self.client.generate(request, timeout_s=self.timeout_s)
        return output.complete.receipt.min_decision_margin

    async def _one(self, ask: Ask) -> Answer:
        began = time.monotonic()
        first: float | None = None
        chunks: list[pb.GenerateChunk] = []
        complete: pb.GenerateComplete | None = None
        async for response in self.client.stream(self._request(ask), timeout_s=self.timeout_s):
            if response.WhichOneof("kind") == "chunk":
                first = first or time.monotonic()
                chunks.append(response.chunk)
            else:
                complete = response.complete
        if complete is None or first is None:
            raise OutriderError("a stream ended with OK but without an output")
        counts = [_num_accepted(chunk) for chunk in chunks]
        return Answer(
            ask=ask,
            token_ids=tuple(complete.output_ids),
            text="".join(chunk.text for chunk in chunks),
            accepted=tuple(count for count in counts if count is not None),
            drafted=_drafted(chunks) if ask.way.is_traced else (),
            receipt=complete.receipt,
            first_ms=(first - began) * 1e3,
            total_ms=(time.monotonic() - began) * 1e3,
        )

    def _request(self, ask: Ask, *, target_only: bool = False) -> pb.GenerateRequest:
        way = ask.way
        alone = target_only or way.target_only
        return generate_request(
            ask.prompt.token_ids,
            ask.sampling,
            model=self.model,
            target_only=alone,
            sources=() if alone else way.sources,
            num_draft_tokens=None if alone else way.num_draft_tokens,
            acceptance_rule=way.rule,
            trace_top_ids=1 if way.is_traced and not alone else 0,
            cache_salt=f"{self.salt}/{way.name}",
        )


def _num_accepted(chunk: pb.GenerateChunk) -> int | None:
    """Return how many draft tokens a cycle accepted; None if it had no draft."""
    if all(origin == pb.TOKEN_ORIGIN_ONLY for origin in chunk.origins):
        return None
    return list(chunk.origins).count(pb.TOKEN_ORIGIN_ACCEPTED)


def _drafted(chunks: Sequence[pb.GenerateChunk]) -> tuple[Drafted | None, ...]:
    """Return what stood in the draft in the place of each token."""
    found: list[Drafted | None] = []
    for chunk in chunks:
        draft = chunk.trace.draft
        for place in range(len(chunk.token_ids)):
            if place >= len(draft.token_ids) or chunk.trace.invalid_draft:
                found.append(None)
            elif draft.distributions:
                packed = draft.distributions[place]
                ids, counts = wire.unpack(packed.ids, packed.counts)
                found.append((ids, counts / wire.TOTAL_COUNT))
            else:
                found.append((np.array([draft.token_ids[place]], dtype=np.int64), np.ones(1)))
    return tuple(found)
