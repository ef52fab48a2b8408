"""Workers whose models sleep: what is left of a cycle is the system's own cost.

The model is calculable by hand: the token at position t is ``t % VOCAB_SIZE``, whatever came
before. Everything around it is the real thing: servicers, leases, digests, packed distributions,
gRPC.
"""

import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import SimpleNamespace

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
from drafter_svc.servicer import DrafterServicer
from drafter_svc.source import Block, Foreseen, Opening, Wanted
from outrider.acceptance import Decision, num_accepted
from outrider.constraint import Constraints
from outrider.draft import Draft
from outrider.engine import EngineSettings, EngineStats
from outrider.sampling import Mode
from outrider.serving.process import run
from outrider.serving.server import Register
from outrider.serving.settings import ServiceSettings, parse_settings
from outrider.v1 import drafter_pb2_grpc, verifier_pb2_grpc, worker_pb2, worker_pb2_grpc
from outrider.worker import Capabilities, WorkerServicer, engine_load
from verifier_svc.servicer import VerifierServicer
from verifier_svc.verification import Verification

IDLE = EngineStats(0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0.0, 0)


class SleepingSettings(ServiceSettings):
    """A worker that sleeps."""

    model_config = SettingsConfigDict(env_prefix="SLEEPING_", cli_prog_name="bench.sleeping")

    role: str = Field(pattern="^(verifier|drafter)$", description="verifier or drafter.")
    compute_ms: float = Field(
        default=20.0, ge=0, description="Milliseconds of a pass (verifier) or a block (drafter)."
    )
    row_ms: float = Field(
        default=0.0, ge=0, description="Milliseconds more per row of a pass, or token of a block."
    )
    is_wrong: bool = Field(default=False, description="A drafter's tokens are all wrong.")
    wrong_every: int = Field(
        default=0, ge=0, description="A drafter is wrong at positions that this divides; 0: none."
    )
    spin_ms: float = Field(
        default=1.2,
        ge=0,
        description="The last stretch, waited for busily: sleeping is only good to a millisecond.",
    )

    @property
    def sleep(self) -> "Sleep":
        """How long the worker's compute takes."""
        return Sleep(self.compute_ms / 1e3, self.row_ms / 1e3, self.spin_ms / 1e3)


@dataclass(slots=True)
class SleepingCache:
    """Counts positions; there is no KV."""

    committed_length: int = 0


@dataclass(slots=True)
class SleepingEngine:
    """Takes the place of the verifier's engine; every step has a pass of its own."""

    sleep: Sleep

    def open(self, *, salt: str) -> SleepingCache:
        """Return an empty cache."""
        return SleepingCache()

    def release(self, cache: SleepingCache) -> None:
        """Nothing to free."""

    @property
    def settings(self) -> EngineSettings:
        """Return what a load report needs to know of an engine."""
        return EngineSettings()

    def stats(self) -> EngineStats:
        """Return the figures of an idle engine."""
        return IDLE

    async def run(self, job: Verification) -> None:
        """Sleep, then decide as the target would."""
        target = [token_at(job.base + row) for row in range(len(job.draft_token_ids) + 1)]
        await self.sleep(len(target))
        accepted = num_accepted(job.draft_token_ids, target)
        job.decision = Decision(tuple(range(accepted)), target[accepted], 1.0)
        job.cache.committed_length = job.base + accepted
        job.finished = SimpleNamespace(  # type: ignore[assignment]
            cached_tokens=0,
            queue_ms=0.0,
            compute_ms=self.sleep.duration_s(len(target)) * 1e3,
            rows_in_pass=len(target),
            passes=1,
        )
        job.done = True


@dataclass(slots=True)
class SleepingLease:
    """A draft lease that always guesses right, always wrong, or wrong at some positions.

    Of those it knows that it is unsure, so that the outcomes in which the target says something
    else there come right behind the one in which all is accepted.
    """

    sleep: Sleep
    is_wrong: bool = False
    wrong_every: int = 0
    cache_length: int = 0

    async def draft(self, wanted: Wanted) -> Block:
        """Sleep, then propose what the target will say."""
        await self.sleep(wanted.num_draft_tokens)
        self.cache_length = wanted.base
        pending = wanted.pending
        path: tuple[int, ...] = ()
        if pending is not None:
            # What is wrong is known to be: the outcome is foreseen either way.
            kept = () if self.is_wrong else pending
            path = (*kept, self._guess(wanted.base + len(kept)))
        return self._block(wanted, path, wanted.num_draft_tokens)

    async def foresee(self, wanted: Wanted) -> Foreseen:
        """Name the outcomes; it takes no time."""
        self.cache_length = wanted.base
        pending = wanted.pending or ()
        whole = (*pending, self._guess(wanted.base + len(pending)))
        ends = sorted(range(len(whole)), key=lambda at: self._is_sure(wanted.base + at))
        others = [(*whole[:at], self._other(wanted.base + at)) for at in ends]
        return Foreseen((whole, *others)[: wanted.max_outcomes])

    async def draft_each(self, wanted: Wanted, foreseen: Foreseen) -> AsyncGenerator[Block, None]:
        """Sleep once for all of them, as for a batch."""
        num_rows = wanted.num_draft_tokens * len(foreseen.paths)
        await self.sleep(num_rows)
        for path in foreseen.paths:
            yield self._block(wanted, path, num_rows)

    def _block(self, wanted: Wanted, path: tuple[int, ...], num_rows: int) -> Block:
        start = wanted.base + len(path)
        ids = tuple(self._guess(start + i) for i in range(wanted.num_draft_tokens))
        if self.is_wrong:
            ids = tuple((i + 1) % VOCAB_SIZE for i in ids)
        draft = Draft(ids, "model", tuple(map(draft_distribution, ids)))
        return Block(path=path, draft=draft, compute_ms=self.sleep.duration_s(num_rows) * 1e3)

    def _is_sure(self, position: int) -> bool:
        return not self.wrong_every or position % self.wrong_every != 0

    def _guess(self, position: int) -> int:
        return token_at(position if self._is_sure(position) else position + 1)

    def _other(self, position: int) -> int:
        return token_at(position + 1 if self._is_sure(position) else position)

    def close(self) -> None:
        """Nothing to free."""


@dataclass(slots=True)
class SleepingSource:
    """Takes the place of the drafter's model source."""

    sleep: Sleep
    is_wrong: bool = False
    wrong_every: int = 0
    name: str = "model"
    num_continuations: int = 0
    feature_layers: tuple[int, ...] = ()
    feature_width: int = 0
    needs_tokenizer: bool = True

    def open(self, opening: Opening) -> SleepingLease:
        """Begin."""
        return SleepingLease(self.sleep, self.is_wrong, self.wrong_every)


@asynccontextmanager
async def open_sleeping(settings: SleepingSettings) -> AsyncIterator[Register]:
    """Build the worker that the settings name."""
    files = tokenizer_files()
    identity = sleeping_identity(files)
    engine = SleepingEngine(settings.sleep)
    is_verifier = settings.role == "verifier"
    verifier = VerifierServicer(
        engine=engine,  # type: ignore[arg-type]
        identity=identity,
        constraints=Constraints(files.tokenizer()),
        max_draft_tokens=64,
        max_sequences=4096,
    )
    source = SleepingSource(settings.sleep, settings.is_wrong, settings.wrong_every)
    drafter = DrafterServicer(
        sources={source.name: source}, identity=identity, max_draft_tokens=64, max_sequences=4096
    )
    capabilities = Capabilities(
        binding=worker_pb2.WORKER_BINDING_TARGET
        if is_verifier
        else worker_pb2.WORKER_BINDING_DRAFT_MODEL,
        modes=tuple(Mode),
        max_draft_tokens=64,
        max_sequences=4096,
        sources=() if is_verifier else (source.name,),
    )
    worker = WorkerServicer(identity, files, capabilities, lambda: engine_load(engine, 0))

    def register(server: grpc.aio.Server) -> None:
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(worker, server)
        if is_verifier:
            verifier_pb2_grpc.add_VerifierServiceServicer_to_server(verifier, server)
        else:
            drafter_pb2_grpc.add_DrafterServiceServicer_to_server(drafter, server)

    yield register


def main() -> int:
    """Serve until a signal."""
    settings = parse_settings(SleepingSettings, sys.argv[1:])
    role = settings.role.capitalize()
    return run(
        settings,
        service=f"sleeping_{settings.role}",
        service_names=(f"outrider.v1.{role}Service", "outrider.v1.WorkerService"),
        open_service=lambda: open_sleeping(settings),
    )


if __name__ == "__main__":
    raise SystemExit(main())
