"""Starts the orchestrator."""

import asyncio
import gc
import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

# Read once, when grpc is imported; gRPC's own lines are no JSON, and its errors reach us as codes.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc
from prometheus_client import CollectorRegistry

from orchestrator.admission import Admission
from orchestrator.discovery import is_name
from orchestrator.metrics import OrchestratorMetrics, PresentState
from orchestrator.right_of_way import RightOfWay
from orchestrator.servicer import GenerationServicer
from orchestrator.settings import OrchestratorSettings
from orchestrator.supervision import Place, Supervisor
from orchestrator.worker import Role, Worker
from orchestrator.workers import WorkerPool
from outrider.serving.channel import open_channel
from outrider.serving.metrics import serving_metrics
from outrider.serving.process import run
from outrider.serving.server import Waiting
from outrider.serving.settings import parse_settings
from outrider.v1 import generation_pb2_grpc

SERVICE_NAMES = ("outrider.v1.GenerationService",)
EARLY = frozenset(f"/{SERVICE_NAMES[0]}/{method}" for method in ("GetServerInfo", "GetLoads"))
POLL_S = 0.02
# Objects of a cycle die with it; looked through as often as by default (700) most still live.
NUM_YOUNG_OBJECTS = 50_000


def places(settings: OrchestratorSettings) -> list[Place]:
    """Return where workers are to be looked for."""

    def place(target: str, role: Role) -> Place:
        def new_worker(address: str) -> Worker:
            return Worker(
                address,
                role,
                open_channel(address),
                step_time=settings.step_time,
                max_failures=settings.max_worker_failures,
            )

        return Place(target, role, new_worker)

    return [
        *(place(target, Role.VERIFIER) for target in settings.verifier),
        *(place(target, Role.DRAFTER) for target in settings.drafter),
    ]


def obstacle(pool: WorkerPool, settings: OrchestratorSettings) -> str:
    """Return why no verifier is ready."""
    if any(worker.role is Role.VERIFIER for worker in pool.workers):
        return pool.obstacle()
    missing = (f"{target}: no address found yet" for target in settings.verifier)
    return "; ".join([pool.obstacle(), *missing])


@asynccontextmanager
async def open_orchestrator(settings: OrchestratorSettings) -> AsyncIterator[Waiting]:
    """Watch the workers; ready once a verifier is, and answers before what needs none."""
    async with (
        serving_metrics(settings) as registry,
        _open_measured(settings, registry) as orchestrator,
    ):
        yield orchestrator


@asynccontextmanager
async def _open_measured(
    settings: OrchestratorSettings, registry: CollectorRegistry
) -> AsyncIterator[Waiting]:
    pool = WorkerPool(
        workers=[],
        template_overrides=frozenset(settings.allow_template_difference),
        may_grow=any(is_name(target) for target in settings.drafter),
        has_canary=settings.canary,
        right_of_way=RightOfWay(settings.priority_budget),
    )
    supervision = asyncio.create_task(Supervisor(pool, places(settings)).run())
    admission = Admission(settings.max_running, settings.max_waiting)
    registry.register(PresentState(pool, admission))
    servicer = GenerationServicer(pool, admission, settings.policy, OrchestratorMetrics(registry))

    def register(server: grpc.aio.Server) -> None:
        generation_pb2_grpc.add_GenerationServiceServicer_to_server(servicer, server)

    async def until_ready() -> None:
        while not pool.targets:
            if supervision.done():
                supervision.result()
            await asyncio.sleep(POLL_S)

    try:
        yield Waiting(register, EARLY, lambda: obstacle(pool, settings), until_ready)
    finally:
        supervision.cancel()
        with suppress(asyncio.CancelledError):
            await supervision
        for worker in pool.workers:
            await worker.channel.close()


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until a signal; returns the exit code."""
    settings = parse_settings(
        OrchestratorSettings, sys.argv[1:] if arguments is None else arguments
    )
    gc.freeze()  # what was imported stays
    gc.set_threshold(NUM_YOUNG_OBJECTS)
    return run(
        settings,
        service="orchestrator",
        service_names=SERVICE_NAMES,
        open_service=lambda: open_orchestrator(settings),
    )


if __name__ == "__main__":
    raise SystemExit(main())
