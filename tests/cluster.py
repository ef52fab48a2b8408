"""The three services in this process, with real servers, real servicers and any models."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

from orchestrator.__main__ import SERVICE_NAMES as ORCHESTRATOR_NAMES
from orchestrator.__main__ import open_orchestrator
from orchestrator.settings import OrchestratorSettings
from outrider.cli.pairing import wait_paired
from outrider.client import Client
from outrider.serving.process import OpenService
from outrider.serving.server import ServiceServer
from outrider.v1 import generation_pb2 as pb

VERIFIER_NAMES = ("outrider.v1.VerifierService", "outrider.v1.WorkerService")
DRAFTER_NAMES = ("outrider.v1.DrafterService", "outrider.v1.WorkerService")


@dataclass(frozen=True, slots=True)
class Cluster:
    """Running services and a client of the orchestrator."""

    client: Client
    address: str
    verifiers: list[str]
    drafters: list[str]
    workers: list[pb.WorkerInfo]


FIXED = 4
"""Draft tokens unless a test says otherwise: what pays depends on the machine."""


@asynccontextmanager
async def serving(service_names: Sequence[str], open_service: OpenService) -> AsyncIterator[str]:
    """Run one service on a free port; yield its address."""
    server = ServiceServer(service_names)
    address = await server.open()
    try:
        async with open_service() as register:
            await server.ready(register)
            yield address
            await server.drain(grace_s=1.0)
    finally:
        await server.drain(grace_s=0.0)


@asynccontextmanager
async def cluster(
    *,
    verifiers: Sequence[OpenService],
    drafters: Sequence[OpenService] = (),
    drafter_addresses: Sequence[str] = (),
    verifier_addresses: Sequence[str] = (),
    wait_for_all: bool = True,
    **orchestrator_settings: object,
) -> AsyncIterator[Cluster]:
    """Run workers and an orchestrator; yield when every worker has been judged.

    ``drafter_addresses`` and ``verifier_addresses`` name workers that run already;
    without ``wait_for_all`` a ready verifier is enough.
    """
    async with AsyncExitStack() as exits:
        all_verifiers = [
            *verifier_addresses,
            *[await exits.enter_async_context(serving(VERIFIER_NAMES, each)) for each in verifiers],
        ]
        started = [
            await exits.enter_async_context(serving(DRAFTER_NAMES, each)) for each in drafters
        ]
        all_drafters = [*drafter_addresses, *started]
        settings = OrchestratorSettings(
            verifier=tuple(all_verifiers),
            drafter=tuple(all_drafters),
            **({"canary": False, "num_draft_tokens": FIXED} | orchestrator_settings),
        )
        address = await exits.enter_async_context(
            serving(ORCHESTRATOR_NAMES, lambda: open_orchestrator(settings))
        )
        client = await exits.enter_async_context(Client(address))
        workers = await wait_paired(client) if wait_for_all else []
        yield Cluster(client, address, all_verifiers, all_drafters, workers)
