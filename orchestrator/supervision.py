"""Keeps watch over every worker: where they are, health, identity, tokenizer files."""

import asyncio
import hashlib
import random
import re
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import grpc
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc

from orchestrator import canary
from orchestrator.discovery import addresses_of
from orchestrator.worker import Role, Worker, WorkerState
from orchestrator.workers import WorkerPool
from outrider.errors import OutriderError
from outrider.identity import ModelIdentity, TokenizerFiles
from outrider.v1 import worker_pb2, worker_pb2_grpc

SERVICES = {
    Role.VERIFIER: "outrider.v1.VerifierService",
    Role.DRAFTER: "outrider.v1.DrafterService",
}
CALL_TIMEOUT_S = 30.0
FIRST_RETRY_S = 0.1
MAX_RETRY_S = 2.0
CANARY_RETRY_S = 1.0

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Place:
    """Where workers of a role are: an address, or a DNS name behind which some come and go."""

    target: str
    role: Role
    new_worker: Callable[[str], Worker]
    """Returns a worker at an address, not reached yet."""


@dataclass(slots=True)
class Supervisor:
    """Watches workers for as long as it runs; the only writer of their states besides the pool.

    A worker whose address a name no longer gives stays for as long as it answers.
    """

    pool: WorkerPool
    places: Sequence[Place]
    _judged: asyncio.Event = field(default_factory=asyncio.Event)
    _told: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))

    async def run(self) -> None:
        """Watch all workers until cancelled."""
        async with asyncio.TaskGroup() as group:
            if self.pool.has_canary:
                group.create_task(self._prove_pairs())
            for place in self.places:
                group.create_task(self._follow(place, group))

    async def _prove_pairs(self) -> None:
        """Run the canary of every pair that fits and was not tried yet."""
        while True:
            await self._judged.wait()
            self._judged.clear()
            for target, drafter in self.pool.unproven():
                incarnation = drafter.identity and drafter.identity.incarnation
                try:
                    objection = await canary.objection(self.pool, target, drafter)
                except OutriderError as error:
                    log.warning("canary_not_run", address=drafter.address, reason=str(error))
                    asyncio.get_running_loop().call_later(CANARY_RETRY_S, self._judged.set)
                    continue
                if drafter.identity and drafter.identity.incarnation == incarnation:
                    self.pool.note_canary(target, drafter, objection)
                    self._log(drafter)

    async def _follow(self, place: Place, group: asyncio.TaskGroup) -> None:
        """Let workers join as their addresses appear, and leave when they are gone as well."""
        present: dict[str, Worker] = {}
        async for addresses in addresses_of(place.target):
            for address, worker in present.items():
                worker.is_leaving = address not in addresses
            present = {a: w for a, w in present.items() if w in self.pool.workers}
            for address in sorted(addresses - present.keys()):
                present[address] = worker = place.new_worker(address)
                self.pool.workers.append(worker)
                group.create_task(self._watch(worker))

    async def _watch(self, worker: Worker) -> None:
        """Follow one worker's health stream, again and again with jittered back-off."""
        retry_s = FIRST_RETRY_S
        while not (worker.is_leaving and not worker.is_ready):
            try:
                async for served in self._health(worker):
                    if served:
                        await self._admit(worker)
                        retry_s = FIRST_RETRY_S
                    else:
                        self._lose(worker, "not serving")
                self._lose(worker, "health stream ended")
            except grpc.aio.AioRpcError as error:
                self._lose(worker, _reason(error))
            except (ValueError, TimeoutError) as error:
                self._refuse(worker, str(error) or "timed out")
            await asyncio.sleep(retry_s * random.uniform(0.5, 1.5))
            retry_s = min(retry_s * 2, MAX_RETRY_S)
        self.pool.workers.remove(worker)
        log.info(f"{worker.role.value}_left", address=worker.address)
        await worker.channel.close()

    async def _health(self, worker: Worker):  # type: ignore[no-untyped-def]
        """Yield whether the worker serves, at every change."""
        stub = health_pb2_grpc.HealthStub(worker.channel)
        request = health_pb2.HealthCheckRequest(service=SERVICES[worker.role])
        async for response in stub.Watch(request, wait_for_ready=False):
            yield response.status == health_pb2.HealthCheckResponse.SERVING

    async def _admit(self, worker: Worker) -> None:
        """Learn what the worker is and let the pool judge it."""
        stub = worker_pb2_grpc.WorkerServiceStub(worker.channel)
        answer = await stub.GetIdentity(worker_pb2.GetIdentityRequest(), timeout=CALL_TIMEOUT_S)
        if (answer.binding == worker_pb2.WORKER_BINDING_TARGET) != (worker.role is Role.VERIFIER):
            raise ValueError(f"the worker is not a {worker.role.value}")
        bound = answer.binding != worker_pb2.WORKER_BINDING_ANY_TARGET
        files = await fetch_tokenizer(stub) if bound else None
        # All at once: another worker's admission may judge this one at any await.
        if worker.identity is None or worker.identity.incarnation != answer.identity.incarnation:
            worker.renew()
        worker.identity = ModelIdentity.from_proto(answer.identity)
        worker.files = files
        worker.binding = answer.binding
        worker.target_weights_digest = answer.target_weights_digest
        worker.sources = tuple(answer.sources)
        worker.max_draft_tokens = answer.max_draft_tokens
        worker.features = {name: tuple(spec.layers) for name, spec in answer.features.items()}
        worker.max_feature_layer = (
            answer.max_feature_layer if answer.HasField("max_feature_layer") else None
        )
        if worker.role is Role.VERIFIER:
            self.pool.admit_verifier(worker)
        else:
            worker.state = WorkerState.CONNECTING
            self.pool.pair_drafters()
        self._judged.set()
        self._log(worker)

    def _lose(self, worker: Worker, reason: str) -> None:
        was_used, was_reached = worker.is_ready, worker.identity is not None
        self.pool.lose(worker, reason)
        if was_used:
            self._log(worker)
        elif not was_reached:
            self._log(worker, "awaited")

    def _refuse(self, worker: Worker, reason: str) -> None:
        self.pool.refuse(worker, reason)
        self._log(worker)

    def _log(self, worker: Worker, happened: str = "") -> None:
        """Log what became of a worker; a reason is told once until the worker is ready."""
        event = f"{worker.role.value}_{happened or worker.state.value}"
        told = self._told[worker.address]
        if worker.is_ready:
            told.clear()
        elif worker.reason in told:
            return
        told.add(worker.reason)
        log.info(event, address=worker.address, reason=worker.reason or None)


def _reason(error: grpc.aio.AioRpcError) -> str:
    """Return what gRPC says without its own frame, which repeats address and code."""
    frame = r"^failed to connect to all addresses; last error: \w+: (\S+: )?"
    return re.sub(frame, "", error.details() or "") or error.code().name


async def fetch_tokenizer(stub: worker_pb2_grpc.WorkerServiceStub) -> TokenizerFiles:
    """Return the worker's tokenizer files.

    Raises: ValueError if a file arrives incomplete or with another digest than stated.
    """
    contents: dict[str, bytearray] = defaultdict(bytearray)
    stated: dict[str, str] = {}
    request = worker_pb2.GetTokenizerRequest()
    async for chunk in stub.GetTokenizer(request, timeout=CALL_TIMEOUT_S):
        contents[chunk.file_name] += chunk.data
        if chunk.sha256:
            stated[chunk.file_name] = chunk.sha256
    for name, content in contents.items():
        if hashlib.sha256(content).hexdigest() != stated.get(name):
            raise ValueError(f"{name} arrived incomplete")
    return TokenizerFiles({name: bytes(content) for name, content in contents.items()})
