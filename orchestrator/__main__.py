"""Starts the orchestrator."""

import asyncio
import gc
import os
import sys
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress

# Read once, when grpc is imported; gRPC's own lines are no JSON, and its errors reach us as codes.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc
from prometheus_client import CollectorRegistry

from orchestrator.admission import Admission
from orchestrator.discovery import is_name
from orchestrator.metrics import OrchestratorMetrics, PolicyState, PresentState, ReceiptState
from orchestrator.monitor import Monitor, MonitorMetrics
from orchestrator.policy_in_force import PolicyInForce
from orchestrator.receipt_log import ReceiptLog
from orchestrator.receipt_store import ReceiptStore
from orchestrator.right_of_way import RightOfWay
from orchestrator.servicer import GenerationServicer
from orchestrator.settings import OrchestratorSettings
from orchestrator.supervision import Place, Supervisor
from orchestrator.worker import Role, Worker
from orchestrator.workers import WorkerPool
from outrider.policy import Policy
from outrider.receipts import to_line
from outrider.serving.channel import open_channel
from outrider.serving.metrics import serving_metrics
from outrider.serving.process import run
from outrider.serving.server import Waiting
from outrider.serving.settings import parse_settings
from outrider.serving.signals import on_hangup
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
                place=target,
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


def policy_of(settings: OrchestratorSettings) -> PolicyInForce:
    """Return the policy that the settings name or describe; Raises: PolicyError."""
    if settings.policy is None:
        return PolicyInForce(settings.policy_of_flags)
    known = set(settings.drafter)
    has_names = any(is_name(target) for target in known)

    def object_to(policy: Policy) -> list[str]:
        """Return which drafters are named that nobody is going to look for."""
        if has_names:  # whose addresses may be anything
            return []
        return [
            f"classes[{index}].drafters: {drafter} is none of --drafter"
            for index, each in enumerate(policy.classes)
            for drafter in each.drafters
            if drafter not in known
        ]

    return PolicyInForce.of_file(settings.policy, object_to)


@contextmanager
def _open_receipt_log(settings: OrchestratorSettings) -> Iterator[ReceiptLog | None]:
    if settings.receipt_log is None:
        yield None
        return
    receipt_log = ReceiptLog(settings.receipt_log, to_line)
    receipt_log.open()
    try:
        yield receipt_log
    finally:
        receipt_log.close()


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
    policies = policy_of(settings)
    pool = WorkerPool(
        workers=[],
        template_overrides=frozenset(settings.allow_template_difference),
        may_grow=any(is_name(target) for target in settings.drafter),
        has_canary=settings.canary,
        right_of_way=RightOfWay(settings.priority_budget),
    )
    admission = Admission(settings.max_running, settings.max_waiting)
    receipts = ReceiptStore(settings.max_receipts, settings.max_receipt_age_s)
    monitor = Monitor(
        pool,
        admission,
        MonitorMetrics(registry),
        share=settings.replay_share,
        alarm_evidence=settings.alarm_evidence,
    )
    supervision = asyncio.create_task(Supervisor(pool, places(settings)).run())

    async def until_ready() -> None:
        while not pool.targets:
            if supervision.done():
                supervision.result()
            await asyncio.sleep(POLL_S)

    replaying = asyncio.create_task(monitor.run())
    try:
        with _open_receipt_log(settings) as receipt_log, _hangups(policies, receipt_log):
            registry.register(PresentState(pool, admission))
            registry.register(PolicyState(policies))
            registry.register(ReceiptState(receipts, receipt_log))
            servicer = GenerationServicer(
                pool,
                admission,
                policies,
                OrchestratorMetrics(registry),
                receipts,
                monitor,
                receipt_log,
            )

            def register(server: grpc.aio.Server) -> None:
                generation_pb2_grpc.add_GenerationServiceServicer_to_server(servicer, server)

            yield Waiting(register, EARLY, lambda: obstacle(pool, settings), until_ready)
    finally:
        for task in (replaying, supervision):
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task
        for worker in pool.workers:
            await worker.channel.close()


@contextmanager
def _hangups(policies: PolicyInForce, receipt_log: ReceiptLog | None) -> Iterator[None]:
    """Let SIGHUP read the policy again, and open the receipt log anew."""
    reloads: set[asyncio.Task[None]] = set()

    def hang_up() -> None:
        if receipt_log is not None:
            receipt_log.reopen()
        reload = asyncio.create_task(policies.reload())
        reloads.add(reload)
        reload.add_done_callback(reloads.discard)

    with on_hangup(hang_up):
        yield


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
