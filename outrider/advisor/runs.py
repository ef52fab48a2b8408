"""What is measured: the same prompts under one setting after the other."""

import asyncio
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import grpc

from outrider.client import Client, generate_request
from outrider.sampling import SamplingParams
from outrider.v1 import generation_pb2 as pb

SEED = 7
ANSWER_S = 600.0
MAX_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Setting:
    """One way of answering; without a source and draft tokens it is target-only."""

    temperature: float
    num_streams: int
    source: str = ""
    num_draft_tokens: int = 0

    @property
    def alone(self) -> "Setting":
        """The same without drafts."""
        return Setting(self.temperature, self.num_streams)


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer; ``costs`` is a cycle each, or empty where they were not asked for.

    ``num_later`` tokens came in ``later_s`` seconds behind the first chunk, by the client's clock.
    """

    token_ids: tuple[int, ...]
    costs: tuple[pb.CycleCost, ...]
    num_later: int
    later_s: float


@dataclass(frozen=True, slots=True)
class Run:
    """All answers under one setting."""

    setting: Setting
    answers: tuple[Answer, ...]

    @property
    def tokens_per_s(self) -> float:
        """Of a stream, prompts left out; 0 where nothing came behind the first chunk."""
        seconds = sum(answer.later_s for answer in self.answers)
        return sum(answer.num_later for answer in self.answers) / seconds if seconds else 0.0

    def num_differing(self, other: "Run") -> int:
        """Answers whose tokens are not those of the other run."""
        pairs = zip(self.answers, other.answers, strict=True)
        return sum(one.token_ids != another.token_ids for one, another in pairs)


@dataclass(slots=True)
class Runner:
    """Asks the orchestrator; nothing is shared between two answers, caches included.

    ``as_chat`` sends prompts as a user's messages, which needs a chat template.
    """

    client: Client
    prompts: Sequence[str]
    max_tokens: int
    as_chat: bool = True
    num_runs: int = 0

    async def run(self, setting: Setting, *, report_costs: bool = True) -> Run:
        """Answer every prompt, and as many of them again as there are streams for.

        Where a stream is lost, as on a machine that is too busy, all is done anew, but not for
        ever. Raises: grpc.aio.AioRpcError.
        """
        for attempt in range(1, MAX_ATTEMPTS + 1):
            try:
                return await self._run(setting, report_costs)
            except ExceptionGroup as group:
                error = group.exceptions[0]
                is_lost = (
                    isinstance(error, grpc.aio.AioRpcError)
                    and error.code() is grpc.StatusCode.UNAVAILABLE
                )
                if not is_lost or attempt == MAX_ATTEMPTS:
                    raise error from None
        raise AssertionError("the last attempt returns or raises")

    async def _run(self, setting: Setting, report_costs: bool) -> Run:
        self.num_runs += 1
        num_answers = max(len(self.prompts), setting.num_streams)
        answers: list[Answer | None] = [None] * num_answers
        numbers = iter(range(num_answers))

        async def stream(numbers: Iterator[int]) -> None:
            for number in numbers:
                answers[number] = await self._answer(setting, number, report_costs)

        async with asyncio.TaskGroup() as group:
            for _ in range(setting.num_streams):
                group.create_task(stream(numbers))
        return Run(setting, tuple(answer for answer in answers if answer is not None))

    async def _answer(self, setting: Setting, number: int, report_costs: bool) -> Answer:
        text = self.prompts[number % len(self.prompts)]
        request = generate_request(
            [("user", text)] if self.as_chat else text,
            SamplingParams(
                temperature=setting.temperature, max_tokens=self.max_tokens, seed=SEED + number
            ),
            target_only=not setting.num_draft_tokens,
            sources=[setting.source] if setting.source else [],
            num_draft_tokens=setting.num_draft_tokens or None,
            report_costs=report_costs,
            cache_salt=f"{self.num_runs} {number}",
        )
        ids: list[int] = []
        costs: list[pb.CycleCost] = []
        first: tuple[float, int] | None = None
        last_s = 0.0
        async for response in self.client.stream(request, timeout_s=ANSWER_S):
            if response.WhichOneof("kind") == "complete":
                continue
            last_s = time.monotonic()
            ids += response.chunk.token_ids
            if report_costs:
                costs.append(response.chunk.cost)
            first = first or (last_s, len(ids))
        began_s, num_first = first or (last_s, len(ids))
        return Answer(tuple(ids), tuple(costs), len(ids) - num_first, last_s - began_s)
