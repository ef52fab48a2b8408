"""Workers are killed, stopped and drained at random points of a stream, as real processes.

The stream goes on as if nothing had happened, and nothing is left behind. ``make failover-soak``
runs 50 rounds, ``make slow`` a few.
"""

import asyncio
import itertools
import os
import random
import signal
import socket
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from outrider.cli.stack import Service
from outrider.client import Client, Output, collect, generate_request
from outrider.sampling import SamplingParams
from outrider.serving.channel import open_channel
from outrider.v1 import generation_pb2 as pb
from outrider.v1 import worker_pb2, worker_pb2_grpc
from tests.toy import save_toy

NUM_ROUNDS = int(os.environ.get("OUTRIDER_FAILOVER_ROUNDS", "6"))
NUM_TOKENS = 320
SEED = 20
READY_S = 60.0

pytestmark = [
    pytest.mark.integration,
    pytest.mark.slow,
    pytest.mark.timeout(120 + 40 * NUM_ROUNDS),
]

SAMPLINGS = {
    "greedy": SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, min_tokens=280),
    "coupled": SamplingParams(temperature=1.0, seed=9, max_tokens=NUM_TOKENS, min_tokens=280),
}
# Six rounds see each of them once, in a random order.
DEEDS = list(itertools.product(("kill", "stop", "drain"), ("verifier", "drafter")))


@dataclass(slots=True)
class Fleet:
    """Two equal verifiers, two equal drafters and an orchestrator, each a process."""

    workers: dict[str, Service]
    orchestrator: Service
    client: Client

    async def until_all_ready(self) -> None:
        """Wait until the orchestrator uses every worker."""
        async with asyncio.timeout(READY_S):
            while True:
                info = await self.client.stub.GetServerInfo(pb.GetServerInfoRequest())
                if all(worker.state in ("ready", "suspect") for worker in info.workers):
                    return
                await asyncio.sleep(0.05)

    async def leases(self, role: str = "") -> dict[str, tuple[int, int]]:
        """Return the open leases and free KV tokens of each worker whose name begins so."""
        found = {}
        for name, service in self.workers.items():
            if not name.startswith(role):
                continue
            async with open_channel(service.address) as channel:
                stub = worker_pb2_grpc.WorkerServiceStub(channel)
                load = (await stub.GetLoads(worker_pb2.GetLoadsRequest(), timeout=10)).load
                found[name] = (load.num_running_reqs, load.free_kv_tokens)
        return found

    async def free_kv_tokens(self) -> dict[str, int]:
        """Return the free KV tokens of each worker once no lease is open.

        A stream's end does not wait for its leases: they close just after.
        """
        async with asyncio.timeout(READY_S):
            while True:
                found = await self.leases()
                if not any(running for running, _ in found.values()):
                    return {name: free for name, (_, free) in found.items()}
                await asyncio.sleep(0.05)

    def open_files(self) -> int:
        """Return how many file descriptors the orchestrator holds."""
        assert self.orchestrator.process is not None
        return len(os.listdir(f"/proc/{self.orchestrator.process.pid}/fd"))

    def num_threads(self) -> int:
        """Return how many threads the orchestrator runs."""
        assert self.orchestrator.process is not None
        return len(os.listdir(f"/proc/{self.orchestrator.process.pid}/task"))


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


@asynccontextmanager
async def open_fleet(folder: Path) -> AsyncIterator[Fleet]:
    toy = save_toy(folder / "toy", seed=1, scale=0.25, num_layers=4, max_context_length=512)
    flags = ("--num-threads", "1", "--grace-s", "0.2")

    def service(name: str, module: str, *arguments: str) -> Service:
        return Service(name, module, arguments, folder, folder / f"{name}.log")

    workers = {
        name: service(
            name,
            module,
            *("--model", str(toy), "--port", str(free_port()), "--dtype", dtype, *flags),
        )
        # Rounding makes the drafters guess wrong now and then.
        for name, module, dtype in (
            ("verifier-0", "verifier_svc", "float32"),
            ("verifier-1", "verifier_svc", "float32"),
            ("drafter-0", "drafter_svc", "bfloat16"),
            ("drafter-1", "drafter_svc", "bfloat16"),
        )
    }
    async with AsyncExitStack() as exits:
        for worker in workers.values():
            exits.push_async_callback(worker.stop)
        await asyncio.gather(*(worker.start() for worker in workers.values()))
        orchestrator = service(
            "orchestrator",
            "orchestrator",
            *(f"--{name.split('-')[0]}={worker.address}" for name, worker in workers.items()),
            "--min-step-timeout-s=3",
        )
        exits.push_async_callback(orchestrator.stop)
        await orchestrator.start()
        await orchestrator.wait_ready(timeout_s=READY_S)
        client = await exits.enter_async_context(Client(orchestrator.address))
        fleet = Fleet(workers, orchestrator, client)
        await fleet.until_all_ready()
        yield fleet


async def stream(
    fleet: Fleet, sampling: SamplingParams, *, source: str, at: int = -1, deed=None
) -> Output:
    """Run one request; after ``at`` tokens do what is to be done."""
    request = generate_request(
        [10, 20, 30, 40],
        sampling,
        sources=[source] if source else [],
        target_only=not source,
        num_draft_tokens=3 if source else None,
    )
    responses, num = [], 0
    async for response in fleet.client.stream(request, timeout_s=60):
        responses.append(response)
        num += len(response.chunk.token_ids)
        if deed is not None and num > at:
            await deed()
            deed = None
    return collect(responses)


async def strike(fleet: Fleet, deed: str, role: str) -> Service:
    """Do the deed to the worker of this role that serves the stream; an idle one tests nothing."""
    name = next(n for n, (open_leases, _) in (await fleet.leases(role)).items() if open_leases)
    victim = fleet.workers[name]
    assert victim.process is not None
    number = {"kill": signal.SIGKILL, "stop": signal.SIGSTOP, "drain": signal.SIGTERM}[deed]
    victim.process.send_signal(number)
    return victim


async def mend(deed: str, victim: Service) -> None:
    """Bring a worker back at its old address."""
    assert victim.process is not None
    if deed == "stop":
        victim.process.send_signal(signal.SIGCONT)
        return
    await victim.process.wait()
    victim.port_file.unlink(missing_ok=True)
    await victim.start()
    await victim.wait_ready(timeout_s=READY_S)


async def test_streams_survive_whatever_happens_to_one_worker(tmp_path: Path) -> None:
    # seed 20
    rng = random.Random(SEED)
    async with open_fleet(tmp_path) as fleet:
        truth = {n: await stream(fleet, s, source="") for n, s in SAMPLINGS.items()}
        for name, sampling in SAMPLINGS.items():
            drafted = await stream(fleet, sampling, source="model")
            assert drafted.token_ids == truth[name].token_ids
            assert drafted.complete.receipt.num_accepted_draft_tokens > 0
        before = await fleet.free_kv_tokens()
        files, threads = fleet.open_files(), fleet.num_threads()
        felt: Counter[tuple[str, str]] = Counter()
        deeds: list[tuple[str, str]] = []
        while len(deeds) < NUM_ROUNDS:
            deeds += rng.sample(DEEDS, len(DEEDS))
        for number, (deed, role) in enumerate(deeds[:NUM_ROUNDS]):
            kind = rng.choice(list(SAMPLINGS))
            at = rng.randrange(0, NUM_TOKENS // 2)
            about = (number, kind, deed, role, at)
            struck: list[Service] = []

            async def strike_now(deed=deed, role=role, struck=struck) -> None:
                struck.append(await strike(fleet, deed, role))

            output = await stream(fleet, SAMPLINGS[kind], source="model", at=at, deed=strike_now)
            expected = truth[kind]
            assert output.token_ids == expected.token_ids, about
            assert output.text == expected.text, about
            streamed = [token for chunk in output.chunks for token in chunk.token_ids]
            assert streamed == expected.token_ids, about
            assert output.complete.finish_reason == expected.complete.finish_reason, about
            receipt = output.complete.receipt
            reasons = {r.reason for r in receipt.fallbacks}
            felt[deed, role] += bool(
                receipt.num_failovers
                if role == "verifier"
                else reasons & {"drafter_lost", "late_draft"}
            )
            await mend(deed, struck[0])
            await fleet.until_all_ready()
        assert await fleet.free_kv_tokens() == before
        # Channels to workers that came back may hold a socket each.
        assert fleet.open_files() <= files + len(fleet.workers)
        assert fleet.num_threads() <= threads + 2
    # A drain may let a stream end, and a lookup hides a late draft; a stream that loses its
    # verifier always feels it.
    for deed in ("kill", "stop"):
        assert felt[deed, "verifier"] == deeds[:NUM_ROUNDS].count((deed, "verifier")), felt
    assert felt["kill", "drafter"] + felt["stop", "drafter"] > 0, felt
