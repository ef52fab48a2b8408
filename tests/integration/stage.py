"""A stage: running services on which a request is played with and without speculation."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

from drafter_svc.__main__ import open_drafter
from drafter_svc.settings import DrafterSettings
from outrider.client import Client, Output, generate_request
from outrider.sampling import SamplingParams
from outrider.serving.process import OpenService
from tests.cluster import Cluster, cluster
from tests.integration.scripted import GUESSES, Book, Guess, open_scripted
from verifier_svc.__main__ import open_verifier
from verifier_svc.settings import VerifierSettings

# Long enough that a busy machine never makes a cycle go without its draft.
DRAFT_WAIT_MS = 10_000.0
GREEDY = SamplingParams(temperature=0.0, max_tokens=32)
MAX_AT_ONCE = 32
ANSWER_S = 50.0

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Stage:
    """Services, and the book from which the scripted drafters read."""

    cluster: Cluster
    book: Book
    model: str = ""

    @property
    def client(self) -> Client:
        """The client of the orchestrator."""
        return self.cluster.client

    def of(self, model: str) -> "Stage":
        """The same services, playing another target."""
        return replace(self, model=model)

    async def plain(
        self, prompt: str | Sequence[int], sampling: SamplingParams = GREEDY, *, salt: str = ""
    ) -> Output:
        """Run without speculation; the book learns the output."""
        request = generate_request(
            prompt, sampling, model=self.model, target_only=True, cache_salt=salt
        )
        output = await self.client.generate(request, timeout_s=ANSWER_S)
        if not isinstance(prompt, str):
            key = 0 if sampling.is_greedy else output.complete.receipt.seed % 2**64
            self.book.learn(prompt, output.token_ids, key=key)
        return output

    async def speculated(
        self,
        prompt: str | Sequence[int],
        sampling: SamplingParams = GREEDY,
        *,
        drafter: str,
        num_draft_tokens: int = 4,
        salt: str = "",
    ) -> Output:
        """Run with drafts of one source."""
        request = generate_request(
            prompt,
            sampling,
            model=self.model,
            sources=[drafter],
            num_draft_tokens=num_draft_tokens,
            cache_salt=salt,
        )
        return await self.client.generate(request, timeout_s=ANSWER_S)


@asynccontextmanager
async def open_stage(
    targets: Sequence[VerifierSettings],
    *,
    drafters: Sequence[OpenService] = (),
    draft_model: DrafterSettings | None = None,
    guesses: Mapping[str, Guess] = GUESSES,
    excess: Mapping[str, int] | None = None,
    **orchestrator_settings: object,
) -> AsyncIterator[Stage]:
    """Run verifiers, the scripted drafters, lookup or a draft model with it, and more drafters."""
    book = Book()
    lookup = draft_model or DrafterSettings()
    opened: list[OpenService] = [
        lambda: open_scripted(book, guesses, excess=excess),
        lambda: open_drafter(lookup),
        *drafters,
    ]
    settings: dict[str, object] = {
        "draft_wait_ms": DRAFT_WAIT_MS,
        "max_running": MAX_AT_ONCE,
        "max_worker_failures": 1_000_000,  # what one test does to a drafter is not held against it
    }
    async with cluster(
        verifiers=[lambda each=each: open_verifier(each) for each in targets],
        drafters=opened,
        **(settings | orchestrator_settings),
    ) as running:
        states = [(worker.role, worker.state, worker.reason) for worker in running.workers]
        assert all(state == "ready" for _, state, _ in states), states
        yield Stage(running, book, model=Path(targets[0].model).name)


async def together(*calls: Awaitable[T]) -> list[T]:
    """Return all results; not more at once than the orchestrator runs."""
    slots = asyncio.Semaphore(MAX_AT_ONCE)

    async def one(call: Awaitable[T]) -> T:
        async with slots:
            return await call

    return list(await asyncio.gather(*map(one, calls)))


def assert_parity(got: Output, expected: Output, about: object = "") -> None:
    """Same ids, text, finish and usage; and the answer agrees with itself."""
    assert facts(got) == facts(expected), about
    assert [i for chunk in got.chunks for i in chunk.token_ids] == got.token_ids, about
    assert got.complete.completion_tokens == len(got.token_ids), about
    receipt = got.complete.receipt
    assert receipt.num_accepted_draft_tokens <= receipt.num_draft_tokens, about
    assert receipt.num_accepted_draft_tokens < max(len(got.token_ids), 1), about
    assert sum(receipt.acceptance_histogram) == receipt.num_spec_steps, about
    for chunk in got.chunks:
        assert len(chunk.token_ids) == len(chunk.origins) == len(chunk.pieces) >= 1, about
        assert "".join(chunk.pieces) == chunk.text, about


def facts(output: Output) -> dict[str, object]:
    """What speculation must not change."""
    complete = output.complete
    matched = complete.WhichOneof("matched_stop")
    return {
        "token_ids": output.token_ids,
        "text": output.text,
        "finish_reason": complete.finish_reason,
        "matched": getattr(complete, matched) if matched else None,
        "prompt_tokens": complete.prompt_tokens,
        "completion_tokens": complete.completion_tokens,
    }


def fallbacks(output: Output) -> dict[str, int]:
    """The receipt's reasons for cycles without a draft."""
    return {each.reason: each.count for each in output.complete.receipt.fallbacks}
