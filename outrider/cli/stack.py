"""All services on this machine, as processes of their own, started and stopped together."""

import asyncio
import os
import signal
import sys
import tempfile
import urllib.request
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from outrider.serving.channel import open_channel

TETHER = (sys.executable, "-I", "-S", str(Path(__file__).with_name("tether.py")))
POLL_S = 0.05
ANSWER_S = 5.0  # what a question for a service's health may take
STOP_S = 40.0
STOP_LOADING_S = 2.0  # who has never served has nothing to finish
LAST_LINES = 8


class StackError(Exception):
    """A service did not come up; the message holds the end of its log."""


@dataclass(slots=True)
class Service:
    """One process and what is known of it.

    It has a session of its own, so that a terminal's Ctrl-C reaches it only through its parent, and
    it stops when the parent dies.
    """

    name: str
    module: str
    arguments: tuple[str, ...]
    folder: Path
    log_path: Path
    environment: dict[str, str] = field(default_factory=dict)
    speaks_http: bool = False
    process: asyncio.subprocess.Process | None = None
    address: str = ""
    was_ready: bool = False

    @property
    def port_file(self) -> Path:
        """Where the process writes its address."""
        return self.folder / f"{self.name}.port"

    async def start(self) -> None:
        """Start the process and learn its address; Raises: StackError if it ends before."""
        command = (*TETHER, str(os.getpid()), "-m", self.module, *self.arguments)
        with self.log_path.open("wb") as log:
            self.process = await asyncio.create_subprocess_exec(
                *command,
                "--port-file",
                str(self.port_file),
                stdout=log,
                stderr=log,
                stdin=asyncio.subprocess.DEVNULL,
                env={**os.environ, **self.environment},
                start_new_session=True,
            )
        while not self.port_file.exists():
            self.check()
            await asyncio.sleep(POLL_S)
        self.address = self.port_file.read_text()

    def check(self) -> None:
        """Raise StackError if the process has ended."""
        assert self.process is not None
        if self.process.returncode is not None:
            lines = self.log_path.read_text(errors="replace").splitlines()[-LAST_LINES:]
            ended = f"{self.name} ended with exit code {self.process.returncode}"
            raise StackError("\n".join([ended, *lines]))

    async def wait(self) -> None:
        """Wait until the process ends."""
        assert self.process is not None
        await self.process.wait()

    async def wait_ready(self, *, timeout_s: float) -> None:
        """Wait until the process serves; Raises: StackError if it ends or takes too long."""
        serves = _serves_http if self.speaks_http else _serves_grpc
        try:
            async with asyncio.timeout(timeout_s):
                while not await serves(self.address):
                    self.check()
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            raise StackError(f"{self.name} was not ready within {timeout_s:.0f} s") from None
        self.was_ready = True

    async def stop(self) -> None:
        """End the process in good order, by force if it does not or if this is cancelled."""
        if self.process is None or self.process.returncode is not None:
            return
        self.process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_S if self.was_ready else STOP_LOADING_S):
                await self.process.wait()
        except TimeoutError:
            pass
        finally:
            await self.kill()

    async def kill(self) -> None:
        """End the process by force if it still runs."""
        if self.process is not None and self.process.returncode is None:
            self.process.kill()
            await self.process.wait()


async def _serves_grpc(address: str) -> bool:
    channel = open_channel(address)
    stub = health_pb2_grpc.HealthStub(channel)
    try:
        answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=ANSWER_S)
    except grpc.aio.AioRpcError:
        return False
    finally:
        await channel.close()
    return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)


async def _serves_http(address: str) -> bool:
    # Services are on loopback; a proxy from the environment is for the outside.
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        await asyncio.to_thread(direct.open, f"http://{address}/health", timeout=ANSWER_S)
    except OSError:
        return False
    return True


@dataclass(frozen=True, slots=True)
class StackOptions:
    """What to start; flags are passed on to the services as they are.

    ``drafter_flags`` holds the flags of each drafter; empty starts none. No ``openai_flags`` start
    no OpenAI front door.
    """

    verifier_flags: Sequence[Sequence[str]]
    drafter_flags: Sequence[Sequence[str]] = ()
    orchestrator_flags: Sequence[str] = ()
    openai_flags: Sequence[str] | None = None
    worker_module: str = ""  # runs in place of both worker services where it is set
    log_folder: Path = Path("build/logs")
    ready_timeout_s: float = 300.0


@dataclass(slots=True)
class Stack:
    """The running services."""

    verifiers: list[Service]
    drafters: list[Service]
    orchestrator: Service
    front_door: Service | None = None

    @property
    def services(self) -> list[Service]:
        """All of them, in the order of their start."""
        door = [] if self.front_door is None else [self.front_door]
        return [*self.verifiers, *self.drafters, self.orchestrator, *door]

    async def wait_until_one_ends(self) -> None:
        """Wait for as long as all services run; Raises: StackError with the one that ended."""
        waits = [asyncio.create_task(service.wait()) for service in self.services]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()
        for service in self.services:
            service.check()

    async def stop(self) -> None:
        """End all in good order: each before those that its streams need.

        Cancelled, end all at once.
        """
        try:
            if self.front_door is not None:
                await self.front_door.stop()
            await self.orchestrator.stop()
            workers = (*self.verifiers, *self.drafters)
            await asyncio.gather(*(worker.stop() for worker in workers))
        finally:
            await asyncio.gather(*(service.kill() for service in self.services))


@asynccontextmanager
async def run_stack(options: StackOptions) -> AsyncIterator[Stack]:
    """Start workers, then what needs them; yield when all are ready; stop all on exit.

    Raises: StackError if one does not come up.
    """
    options.log_folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="outrider-") as folder:

        def service(name: str, module: str, flags: Sequence[str]) -> Service:
            log_path = options.log_folder / f"{name}.log"
            return Service(name, module, tuple(flags), Path(folder), log_path)

        verifiers = [
            service(f"verifier-{index}", options.worker_module or "verifier_svc", flags)
            for index, flags in enumerate(options.verifier_flags)
        ]
        drafters = [
            service(f"drafter-{index}", options.worker_module or "drafter_svc", flags)
            for index, flags in enumerate(options.drafter_flags)
        ]
        workers = [*verifiers, *drafters]
        orchestrator = service("orchestrator", "orchestrator", ())
        stack = Stack(verifiers, drafters, orchestrator)
        if options.openai_flags is not None:
            stack.front_door = service("openai", "openai_svc", ())
            stack.front_door.speaks_http = True
        try:
            await asyncio.gather(*(worker.start() for worker in workers))
            addresses = [f"--verifier={worker.address}" for worker in verifiers]
            addresses += [f"--drafter={worker.address}" for worker in drafters]
            orchestrator.arguments = (*addresses, *options.orchestrator_flags)
            await orchestrator.start()
            if stack.front_door is not None:
                address = f"--orchestrator={orchestrator.address}"
                stack.front_door.arguments = (address, *(options.openai_flags or ()))
                await stack.front_door.start()
            waits = (each.wait_ready(timeout_s=options.ready_timeout_s) for each in stack.services)
            await asyncio.gather(*waits)
            yield stack
        finally:
            await stack.stop()
