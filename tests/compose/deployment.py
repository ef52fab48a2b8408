"""The services in containers, driven by the commands that an operator has."""

import asyncio
import json
import os
import re
import shutil
import socket
import time
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from outrider.client import Client
from outrider.v1 import generation_pb2 as pb

ROOT = Path(__file__).parents[2]
FILES = (ROOT / "docker/compose.yaml", Path(__file__).with_name("stranger.yaml"))
POLL_S = 0.5
READY_S = 240.0


class CommandFailed(Exception):
    """A command of docker or Compose failed; the message holds what it printed."""


async def command(*words: str, environment: Mapping[str, str] | None = None) -> str:
    """Run a command and return what it prints; Raises: CommandFailed."""
    process = await asyncio.create_subprocess_exec(
        *words,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, **(environment or {})},
    )
    output, errors = await process.communicate()
    if process.returncode != 0:
        said = (output + errors).decode(errors="replace")[-2000:]
        raise CommandFailed(f"{' '.join(words)}: exit code {process.returncode}\n{said}")
    return output.decode()


async def compose_words() -> tuple[str, ...]:
    """Return how Compose is called here: as a plugin of docker, or as a program of its own."""
    try:
        await command("docker", "compose", "version")
    except CommandFailed:
        return ("docker-compose",)
    return ("docker", "compose")


def free_port() -> int:
    """Return a port of the loopback interface that nobody uses now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


async def until(happened: Callable[[], Awaitable[bool]], *, timeout_s: float = READY_S) -> None:
    """Ask again and again until it has happened; Raises: TimeoutError."""
    async with asyncio.timeout(timeout_s):
        while True:
            if await happened():
                return
            await asyncio.sleep(POLL_S)


@dataclass(slots=True)
class Deployment:
    """One Compose project of its own, with free ports on loopback."""

    models: Path
    stranger: Path
    project: str = field(
        default_factory=lambda: os.environ.get("COMPOSE_PROJECT_NAME", f"outrider-{os.getpid()}")
    )
    port: int = field(default_factory=free_port)
    openai_port: int = field(default_factory=free_port)
    prometheus_port: int = field(default_factory=free_port)
    _compose: tuple[str, ...] = ()

    @property
    def address(self) -> str:
        """Where the orchestrator is reached from outside the containers."""
        return f"127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables that the Compose files ask for."""
        return {
            "COMPOSE_PROJECT_NAME": self.project,
            "MODELS": str(self.models.absolute()),
            "TARGET_MODEL": "/models/smollm2-135m-instruct",
            "DRAFT_MODEL": "/models/smollm2-135m-instruct-draft",
            "STRANGER": str(self.stranger),
            "PORT": str(self.port),
            # Few cores, many containers: slow is neither hung nor too late, and drafts are short.
            "VERIFIER_THREADS": "1",
            "DRAFTER_THREADS": "1",
            "NUM_DRAFT_TOKENS": "2",
            "MIN_STEP_TIMEOUT_S": "60",
            "DRAFT_WAIT_MS": "3000",
            "OPENAI_PORT": str(self.openai_port),
            "PROMETHEUS_PORT": str(self.prometheus_port),
        }

    async def compose(self, *words: str) -> str:
        """Run a command of Compose on this project."""
        if not self._compose:
            self._compose = await compose_words()
        files = [word for path in FILES for word in ("-f", str(path))]
        return await command(*self._compose, *files, *words, environment=self.environment)

    async def up(self, *services: str, **scale: int) -> None:
        """Start services with so many containers each."""
        scaled = [word for name, n in scale.items() for word in ("--scale", f"{name}={n}")]
        await self.compose("up", "--detach", "--no-build", *scaled, *services)

    async def down(self) -> None:
        """Remove all that belongs to the project."""
        await self.compose("down", "--volumes", "--remove-orphans", "--timeout", "5")

    async def containers(self, service: str) -> list[str]:
        """Return the ids of a service's containers, stopped ones included, oldest first."""
        labels = (
            f"label=com.docker.compose.project={self.project}",
            f"label=com.docker.compose.service={service}",
        )
        filters = [word for label in labels for word in ("--filter", label)]
        listed = await command("docker", "ps", "--all", "--quiet", "--no-trunc", *filters)
        return listed.split()[::-1]

    async def inspect(self, container: str) -> dict[str, Any]:
        """Return what the engine knows of a container."""
        found: list[dict[str, Any]] = json.loads(await command("docker", "inspect", container))
        return found[0]

    async def healthy(self, container: str) -> None:
        """Wait until the container's own health check passes."""

        async def is_healthy() -> bool:
            state = (await self.inspect(container))["State"]
            return bool(state["Health"]["Status"] == "healthy")

        await until(is_healthy)

    async def serving(self) -> None:
        """Wait until the orchestrator says over gRPC that it serves."""
        async with grpc.aio.insecure_channel(self.address) as channel:
            stub = health_pb2_grpc.HealthStub(channel)
            request = health_pb2.HealthCheckRequest()

            async def serves() -> bool:
                try:
                    answer = await stub.Check(request, timeout=5, wait_for_ready=True)
                except grpc.aio.AioRpcError:
                    return False
                return bool(answer.status == health_pb2.HealthCheckResponse.SERVING)

            await until(serves)

    async def workers(self, state: str = "ready") -> list[pb.WorkerInfo]:
        """Return the workers that the orchestrator has in this state."""
        async with Client(self.address) as client:
            info = await client.stub.GetServerInfo(
                pb.GetServerInfoRequest(), timeout=10, wait_for_ready=True
            )
        return [worker for worker in info.workers if worker.state == state]

    async def wait_workers(self, state: str = "ready", **expected: int) -> list[pb.WorkerInfo]:
        """Wait until exactly so many workers of each role are in this state, and return them."""
        present: list[pb.WorkerInfo] = []

        async def are_there() -> bool:
            present[:] = await self.workers(state)
            return Counter(worker.role for worker in present) == Counter(expected)

        await until(are_there)
        return present

    async def scale(self, **sizes: int) -> None:
        """Bring the workers to these numbers and wait until they are used."""
        for service, size in sizes.items():
            for container in (await self.containers(service))[size:]:
                # Compose would leave the unnamed volumes of what it removes.
                await command("docker", "stop", "--time", "40", container)
                await command("docker", "rm", "--volumes", container)
        await self.up("orchestrator", "openai", "prometheus", *sizes, **sizes)
        await self.serving()
        await self.wait_workers(**sizes)

    async def logs(self) -> str:
        """Return what all containers have printed."""
        return await self.compose("logs", "--no-color", "--tail", "200")

    async def ask_prometheus(self, path: str, **parameters: str) -> Any:
        """Return the data of an answer of Prometheus's HTTP API; Raises: HTTPError."""
        query = urllib.parse.urlencode(parameters)
        url = f"http://127.0.0.1:{self.prometheus_port}/api/v1/{path}?{query}"

        def read() -> Any:
            with urllib.request.urlopen(url, timeout=10) as answer:
                return json.load(answer)["data"]

        return await asyncio.to_thread(read)

    async def figures(self, expression: str, label: str) -> dict[str, float]:
        """Return the values of an instant query by the value of one label."""
        data = await self.ask_prometheus("query", query=expression)
        return {each["metric"].get(label, ""): float(each["value"][1]) for each in data["result"]}

    async def figure(self, expression: str) -> float:
        """Return the one value of an instant query; 0 where there is none yet."""
        return sum((await self.figures(expression, "")).values())

    async def scraped(self) -> None:
        """Wait until every service has been scraped since now."""
        now = time.time()

        async def was_scraped() -> bool:
            return await self.figure("min(timestamp(up))") > now

        await until(was_scraped, timeout_s=60)


def make_stranger(draft: Path, folder: Path) -> Sequence[str]:
    """Copy a draft model with two vocabulary entries swapped; return the two tokens."""
    shutil.copytree(draft, folder)
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    vocabulary = tokenizer["model"]["vocab"]
    words = [word for word in vocabulary if re.fullmatch(r"Ġ[a-z]{6,}", word)][:2]
    first, second = words
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    path.write_text(json.dumps(tokenizer, ensure_ascii=False))
    return words
