"""Drives Outrider: the services as ``outrider up`` starts them, asked over gRPC.

Modes: ``target-only``; ``default``, whatever the policy says; else ``SOURCE`` or ``SOURCE@K``.
"""

import argparse
import os
import time
from contextlib import AsyncExitStack
from pathlib import Path

import outrider
from bench.peers.driver import serve
from bench.peers.turn import Answer, Turn
from outrider import sources
from outrider.checkpoints import prepare
from outrider.cli.pairing import wait_paired
from outrider.cli.stack import Stack, StackOptions, run_stack
from outrider.cli.up import DEFAULT_SOURCE
from outrider.client import Client, generate_request
from outrider.sampling import SamplingParams
from outrider.v1 import generation_pb2 as pb

TARGET_ONLY = "target-only"
DEFAULT = "default"
ANSWER_TIMEOUT_S = 600.0
LOGS = Path("build/logs/side_by_side")


class OutriderDriver:
    """The services and a client."""

    def __init__(self, modes: list[str]) -> None:
        self._modes = modes
        self._open = AsyncExitStack()
        self._stack: Stack | None = None
        self._client: Client | None = None

    async def start(self) -> dict[str, str]:
        """Start the services and wait until drafters are paired."""
        prepared = prepare()
        drafters = [prepared.best]
        if any(part in sources.MODELS for mode in self._modes for part in _parts(mode)):
            drafters.append(prepared.draft)
        options = StackOptions(
            verifier_flags=[("--model", str(prepared.target))],
            drafter_flags=[("--model", str(folder)) for folder in drafters],
            orchestrator_flags=("--sources", DEFAULT_SOURCE),
            log_folder=LOGS,
        )
        self._stack = await self._open.enter_async_context(run_stack(options))
        address = self._stack.orchestrator.address
        self._client = await self._open.enter_async_context(Client(address))
        await wait_paired(self._client)
        return {
            "outrider": outrider.__version__,
            "default_source": DEFAULT_SOURCE,
            "drafters": ", ".join(folder.name for folder in drafters),
        }

    async def answer(self, turn: Turn, index: int) -> Answer:
        """Stream one answer."""
        assert self._client is not None
        request = _request(turn, index)
        arrivals: list[tuple[float, int]] = []
        complete = pb.GenerateComplete()
        began = time.perf_counter()
        async for response in self._client.stream(request, timeout_s=ANSWER_TIMEOUT_S):
            if response.WhichOneof("kind") == "chunk":
                arrivals.append((time.perf_counter() - began, len(response.chunk.token_ids)))
            else:
                complete = response.complete
        receipt = complete.receipt
        times_ms = {
            "queue": receipt.queue_ms,
            "draft": receipt.draft_ms,
            "verify": receipt.verify_ms,
            "network": receipt.network_ms,
            "total": receipt.total_ms,
        }
        return Answer(list(complete.output_ids), arrivals, times_ms)

    def pids(self, mode: str) -> list[int]:
        """Return all services; without the drafters where none is needed."""
        assert self._stack is not None
        services = [*self._stack.verifiers, self._stack.orchestrator]
        if mode != TARGET_ONLY:
            services += self._stack.drafters
        processes = [service.process for service in services]
        return [process.pid for process in processes if process is not None]

    async def stop(self) -> None:
        """Stop the services."""
        await self._open.aclose()


def _parts(mode: str) -> list[str]:
    return mode.partition("@")[0].split("+")


def _request(turn: Turn, index: int) -> pb.GenerateRequest:
    sampling = SamplingParams(temperature=0.0, max_tokens=turn.num_tokens)
    prompt = turn.prompts[index]
    if turn.mode in (TARGET_ONLY, DEFAULT):
        is_plain = turn.mode == TARGET_ONLY
        return generate_request(prompt, sampling, target_only=is_plain, cache_salt=turn.salt)
    source, _, length = turn.mode.partition("@")
    return generate_request(
        prompt,
        sampling,
        sources=[source],
        num_draft_tokens=int(length) if length else None,
        cache_salt=turn.salt,
    )


def main() -> None:
    """Parse flags and serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--modes", nargs="+", required=True)
    options = parser.parse_args()
    # Every thread count is the number of usable CPUs unless this says otherwise.
    os.environ.pop("OMP_NUM_THREADS", None)
    serve(OutriderDriver(options.modes))


if __name__ == "__main__":
    main()
