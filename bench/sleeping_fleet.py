"""Many workers that sleep, in one process: the far side of one orchestrator under load.

Like ``bench.sleeping`` the model is calculable by hand (the token at position t is ``t %
VOCAB_SIZE``), but servicers answer without checking anything, so that a process with all workers of
a role takes less of the machine than the orchestrator that it is there to measure. Verifiers batch
as an engine does: a pass serves all sequences that wait when it begins. Drafters sleep side by
side, and every ``WRONG_EVERY``-th token of theirs is wrong, so that drafts of up to four tokens are
worth most; behind a prompt that begins with ``USELESS_ID`` every token is.
"""

import asyncio
import json
import sys
import time
import uuid
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

import grpc
from pydantic import Field
from pydantic_settings import SettingsConfigDict

from bench.sleeping_model import (
    VOCAB_SIZE,
    Sleep,
    draft_distribution,
    sleeping_identity,
    token_at,
    tokenizer_files,
)
from outrider.identity import ModelIdentity, TokenizerFiles
from outrider.sampling import Mode
from outrider.serving.logs import configure_logging
from outrider.serving.server import ServiceServer
from outrider.serving.settings import ServiceSettings, parse_settings
from outrider.serving.signals import StopSignals
from outrider.v1 import (
    common_pb2,
    drafter_pb2,
    drafter_pb2_grpc,
    verifier_pb2,
    verifier_pb2_grpc,
    worker_pb2,
    worker_pb2_grpc,
)
from outrider.worker import Capabilities, WorkerServicer

MAX_DRAFT_TOKENS = 64
MAX_SEQUENCES = 4096
WRONG_EVERY = 5
USELESS_ID = 99


class FleetSettings(ServiceSettings):
    """Workers that sleep, all in this process; the port file lists them with commas."""

    model_config = SettingsConfigDict(env_prefix="FLEET_", cli_prog_name="bench.sleeping_fleet")

    role: str = Field(pattern="^(verifier|drafter)$", description="verifier or drafter.")
    workers: int = Field(default=4, ge=1, description="Workers to serve.")
    compute_ms: float = Field(default=25.0, ge=0, description="Milliseconds of a pass or a block.")
    row_ms: float = Field(
        default=0.5, ge=0, description="Milliseconds more per row of a pass, or token of a block."
    )
    samples_file: Path | None = Field(
        default=None, description="File that gets what verifiers saw of each cycle, at the end."
    )


@dataclass(frozen=True, slots=True)
class PassTimes:
    """What a pass took: what its sequences waited before and in it, and what they shared it
    with."""

    queue_ms: float
    compute_ms: float
    num_rows: int


@dataclass(slots=True)
class Passes:
    """One pass after the other, each over all that wait when it begins."""

    sleep: Sleep
    waiting: list[tuple[int, float, "asyncio.Future[PassTimes]"]] = field(default_factory=list)
    running: "asyncio.Task[None] | None" = None

    def join(self, num_rows: int) -> "asyncio.Future[PassTimes]":
        """Return what becomes done with the pass that takes these rows."""
        done: asyncio.Future[PassTimes] = asyncio.get_running_loop().create_future()
        self.waiting.append((num_rows, time.monotonic(), done))
        if self.running is None:
            self.running = asyncio.create_task(self._run())
        return done

    async def _run(self) -> None:
        await asyncio.sleep(0)  # steps that came in one batch of events share the first pass
        while self.waiting:
            taken, self.waiting = self.waiting, []
            began, num_rows = time.monotonic(), sum(rows for rows, _, _ in taken)
            await self.sleep(num_rows)
            compute_ms = (time.monotonic() - began) * 1e3
            for _, since, done in taken:
                if not done.done():  # cancelled with its stream
                    done.set_result(PassTimes((began - since) * 1e3, compute_ms, num_rows))
        self.running = None


@dataclass(slots=True)
class FleetVerifier(verifier_pb2_grpc.VerifierServiceServicer):
    """One verifier; ``turnarounds`` gets, for every cycle after the first of a lease, when its step
    came and the seconds since the verdict before was handed out."""

    incarnation: str
    passes: Passes
    turnarounds: list[tuple[float, float]]
    num_leases: int = 0

    async def Verify(
        self,
        request_iterator: AsyncIterator[verifier_pb2.VerifyRequest],
        context: grpc.aio.ServicerContext,
    ) -> None:
        """Answer every step as the target would."""
        self.num_leases += 1
        answered_at: float | None = None
        try:
            async for request in request_iterator:
                if request.WhichOneof("kind") == "open":
                    opened = verifier_pb2.VerifyOpened(incarnation=self.incarnation)
                    await context.write(verifier_pb2.VerifyResponse(opened=opened))
                    continue
                now = time.monotonic()
                if answered_at is not None:
                    self.turnarounds.append((now, now - answered_at))
                verdict = await self._decide(request.step)
                answered_at = time.monotonic()
                await context.write(verifier_pb2.VerifyResponse(verdict=verdict))
        finally:
            self.num_leases -= 1

    async def _decide(self, step: verifier_pb2.Step) -> verifier_pb2.Verdict:
        num_ids, draft_ids = len(step.token_ids), step.draft.token_ids
        times = await self.passes.join(num_ids + len(draft_ids))
        base = step.start + num_ids
        accepted = 0
        while accepted < len(draft_ids) and draft_ids[accepted] == token_at(base + accepted):
            accepted += 1
        kind = verifier_pb2.NEXT_TOKEN_KIND_RECOVERED
        if accepted == len(draft_ids):
            kind = (
                verifier_pb2.NEXT_TOKEN_KIND_BONUS
                if accepted
                else verifier_pb2.NEXT_TOKEN_KIND_ONLY
            )
        return verifier_pb2.Verdict(
            cycle=step.cycle,
            accepted_nodes=range(accepted),
            next_token_id=token_at(base + accepted),
            next_token_kind=kind,
            cache_length=base + accepted,
            queue_ms=times.queue_ms,
            compute_ms=times.compute_ms,
            rows_in_pass=times.num_rows,
            num_passes=1,
            min_decision_margin=1.0,
            load=common_pb2.Load(
                num_running_reqs=self.num_leases, num_waiting_reqs=len(self.passes.waiting)
            ),
        )


@dataclass(slots=True)
class FleetDrafter(drafter_pb2_grpc.DrafterServiceServicer):
    """One drafter."""

    incarnation: str
    sleep: Sleep

    async def Draft(
        self,
        request_iterator: AsyncIterator[drafter_pb2.DraftRequest],
        context: grpc.aio.ServicerContext,
    ) -> None:
        """Answer every advance, one after the other."""
        async with asyncio.TaskGroup() as group:
            answer: asyncio.Task[None] | None = None
            wrong_every = WRONG_EVERY
            async for request in request_iterator:
                if request.WhichOneof("kind") == "open":
                    opened = drafter_pb2.DraftOpened(source="model", incarnation=self.incarnation)
                    await context.write(drafter_pb2.DraftResponse(opened=opened))
                    continue
                advance = request.advance
                if advance.start == 0 and advance.token_ids[:1] == [USELESS_ID]:
                    wrong_every = 1
                answer = group.create_task(self._answer(advance, wrong_every, context, answer))

    async def _answer(
        self,
        advance: drafter_pb2.Advance,
        wrong_every: int,
        context: grpc.aio.ServicerContext,
        previous: "asyncio.Task[None] | None",
    ) -> None:
        base, num_tokens = advance.start + len(advance.token_ids), advance.max_draft_tokens
        path: tuple[int, ...] = ()
        if advance.HasField("pending"):  # what is wrong is known to be: the outcome is foreseen
            kept, foreseen = 0, advance.pending.token_ids
            while kept < len(foreseen) and foreseen[kept] == token_at(base + kept):
                kept += 1
            path = tuple(token_at(base + index) for index in range(kept + 1))
        start = base + len(path)
        block = drafter_pb2.DraftBlock(
            base_length=base,
            path_token_ids=path,
            for_cycle=advance.for_cycle,
            cache_length=base,
            compute_ms=self.sleep.duration_s(num_tokens) * 1e3,
            last=True,
            cycle=advance.cycle,
        )
        await self.sleep(num_tokens)
        for position in range(start, start + num_tokens):
            token_id = (position + (position % wrong_every == 0)) % VOCAB_SIZE
            block.draft.token_ids.append(token_id)
            block.draft.distributions.append(_distribution(token_id))
        block.draft.source = "model"
        if previous is not None and not previous.done():
            await asyncio.wait([previous])  # a write must end before the next one begins
        await context.write(drafter_pb2.DraftResponse(block=block))


@cache
def _distribution(token_id: int) -> common_pb2.TokenDistribution:
    ids, counts = draft_distribution(token_id)
    return common_pb2.TokenDistribution(ids=ids, counts=counts)


@dataclass(slots=True)
class Fleet:
    """All workers of one role; ``turnarounds`` is what its verifiers saw."""

    settings: FleetSettings
    files: TokenizerFiles = field(default_factory=tokenizer_files)
    turnarounds: list[tuple[float, float]] = field(default_factory=list)

    async def open_worker(self, identity: ModelIdentity) -> tuple[ServiceServer, str]:
        """Start a worker; returns it with its address."""
        role = self.settings.role.capitalize()
        names = (f"outrider.v1.{role}Service", "outrider.v1.WorkerService")
        server = ServiceServer(names, host=self.settings.host)
        address = await server.open()
        await server.ready(lambda grpc_server: self._register(grpc_server, identity))
        return server, address

    def _register(self, server: grpc.aio.Server, identity: ModelIdentity) -> None:
        settings = self.settings
        sleep = Sleep(settings.compute_ms / 1e3, settings.row_ms / 1e3, spin_s=0.0)
        is_verifier = settings.role == "verifier"
        capabilities = Capabilities(
            binding=worker_pb2.WORKER_BINDING_TARGET
            if is_verifier
            else worker_pb2.WORKER_BINDING_DRAFT_MODEL,
            modes=tuple(Mode),
            max_draft_tokens=MAX_DRAFT_TOKENS,
            max_sequences=MAX_SEQUENCES,
            sources=() if is_verifier else ("model",),
        )
        worker = WorkerServicer(identity, self.files, capabilities, common_pb2.Load)
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(worker, server)
        if is_verifier:
            verifier = FleetVerifier(identity.incarnation, Passes(sleep), self.turnarounds)
            verifier_pb2_grpc.add_VerifierServiceServicer_to_server(verifier, server)
        else:
            drafter = FleetDrafter(identity.incarnation, sleep)
            drafter_pb2_grpc.add_DrafterServiceServicer_to_server(drafter, server)

    async def serve(self) -> None:
        """Serve until a signal, then tell what was seen."""
        identity = sleeping_identity(self.files)
        opened = [
            await self.open_worker(replace(identity, incarnation=uuid.uuid4().hex))
            for _ in range(self.settings.workers)
        ]
        with StopSignals() as signals:
            signals.loaded()
            if self.settings.port_file is not None:
                addresses = ",".join(address for _, address in opened)
                unfinished = self.settings.port_file.with_suffix(".unfinished")
                unfinished.write_text(addresses)
                unfinished.replace(self.settings.port_file)
            await signals.requested.wait()
            if self.settings.samples_file is not None:
                self.settings.samples_file.write_text(json.dumps(self.turnarounds))
            await asyncio.gather(*(server.drain(grace_s=1.0) for server, _ in opened))


def main() -> int:
    """Serve until a signal."""
    settings = parse_settings(FleetSettings, sys.argv[1:])
    configure_logging(f"fleet_{settings.role}", level=settings.log_level)
    asyncio.run(Fleet(settings).serve())
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
