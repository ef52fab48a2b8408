"""Sends requests when they are due, whatever became of those before, and notes what came back."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

import grpc

from bench.mixed.classes import LANGUAGE, WORKLOAD
from bench.mixed.schedule import Arrival
from outrider.client import Client, generate_request
from outrider.sampling import SamplingParams

ANSWER_S = 300.0


@dataclass(frozen=True, slots=True)
class Answered:
    """What a client saw of one request; ``status`` is a code's name."""

    arrival: Arrival
    request_id: str
    status: str
    num_tokens: int
    ttft_ms: float
    total_ms: float
    late_ms: float
    """How much later than it was due the request was sent."""


async def replay(
    client: Client, arrivals: Sequence[Arrival], name: str, *, all_target_only: bool = False
) -> list[Answered]:
    """Run all arrivals; ``name`` begins their request ids and is their cache salt."""
    began_s = time.monotonic()

    async def one(arrival: Arrival) -> Answered:
        await asyncio.sleep(max(began_s + arrival.at_s - time.monotonic(), 0.0))
        return await _answer(client, arrival, name, began_s, arrival.is_control or all_target_only)

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(arrival)) for arrival in arrivals]
    return [task.result() for task in tasks]


async def _answer(
    client: Client, arrival: Arrival, name: str, began_s: float, target_only: bool
) -> Answered:
    of = arrival.of
    prompt = arrival.prompt
    request = generate_request(
        [("user", prompt)] if isinstance(prompt, str) else prompt,
        SamplingParams(
            temperature=of.temperature,
            frequency_penalty=of.frequency_penalty,
            max_tokens=arrival.max_tokens,
            seed=arrival.number,
        ),
        target_only=target_only,
        # No answer may profit of another of the same prompt: the next one is never the same.
        cache_salt=f"{name} {arrival.number}",
        priority=of.priority,
    )
    request_id = f"{name}-{arrival.number}"
    sent_s = time.monotonic()
    first_s, num_tokens, status = sent_s, 0, "OK"
    try:
        async for response in client.stream(
            request,
            timeout_s=ANSWER_S,
            request_id=request_id,
            metadata={WORKLOAD: of.name, LANGUAGE: arrival.language},
        ):
            if response.WhichOneof("kind") == "chunk":
                first_s = first_s if num_tokens else time.monotonic()
                num_tokens += len(response.chunk.token_ids)
    except grpc.aio.AioRpcError as error:
        status = error.code().name
    ended_s = time.monotonic()
    return Answered(
        arrival=arrival,
        request_id=request_id,
        status=status,
        num_tokens=num_tokens,
        ttft_ms=(first_s - sent_s) * 1e3,
        total_ms=(ended_s - sent_s) * 1e3,
        late_ms=(sent_s - began_s - arrival.at_s) * 1e3,
    )
