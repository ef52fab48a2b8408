"""A service as a process: what it prints, how it stops, and with which exit code."""

import asyncio
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest

from outrider.client import Client
from outrider.serving.channel import open_channel
from outrider.v1 import generation_pb2 as pb

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[3]
SERVICE = "tests.integration.serving.kennel_service"


class Process:
    """A running kennel and the events that it logs."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.events: list[dict[str, object]] = []

    async def until(self, event: str) -> dict[str, object]:
        assert self.process.stdout is not None
        while line := await self.process.stdout.readline():
            self.events.append(json.loads(line))
            if self.events[-1]["event"] == event:
                return self.events[-1]
        raise AssertionError(f"no {event} among {self.events}")

    async def exit_code(self) -> int:
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        rest = await asyncio.wait_for(self.process.stdout.read(), 20)
        self.events += [json.loads(line) for line in rest.splitlines()]
        assert await self.process.stderr.read() == b""  # everything is said in the log
        return await self.process.wait()

    @property
    def names(self) -> list[object]:
        return [event["event"] for event in self.events]


@asynccontextmanager
async def kennel(*arguments: str, module: str = SERVICE) -> AsyncIterator[Process]:
    command = (sys.executable, "-m", module, *arguments)
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, cwd=ROOT
    )
    try:
        yield Process(process)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_sigterm_lets_a_running_rpc_finish_then_exits_0(tmp_path):
    port_file = tmp_path / "kennel.port"
    async with kennel("--port-file", str(port_file)) as service:
        address = str((await service.until("service_started"))["address"])
        assert port_file.read_text() == address
        await service.until("service_ready")
        async with open_channel(address) as channel:
            walk = channel.unary_stream("/kennel.Kennel/Walk")(b"0.5")
            assert await walk.read() == b"step"
            service.process.send_signal(signal.SIGTERM)
            assert await walk.read() == b"home"
            assert await walk.code() is grpc.StatusCode.OK
        assert await service.exit_code() == 0
    assert service.names == [
        "service_started",
        "service_ready",
        "service_draining",
        "released",
        "service_stopped",
    ]
    assert {event["service"] for event in service.events} == {"kennel"}
    assert not port_file.exists()


async def test_a_second_signal_ends_the_grace_period():
    async with kennel("--grace-s", "600") as service:
        address = str((await service.until("service_started"))["address"])
        await service.until("service_ready")
        async with open_channel(address) as channel:
            walk = channel.unary_stream("/kennel.Kennel/Walk")(b"600")
            assert await walk.read() == b"step"
            await asyncio.sleep(0.1)  # so that the write is over at its own end, too
            service.process.send_signal(signal.SIGTERM)
            await service.until("service_draining")
            service.process.send_signal(signal.SIGINT)
            assert await walk.code() is grpc.StatusCode.UNAVAILABLE
            assert await walk.details() == "the service is shutting down"
        assert await service.exit_code() == 0
    assert service.names[-3:] == ["rpc_failed", "released", "service_stopped"]


async def test_a_signal_while_loading_stops_the_loading():
    async with kennel("--load-s", "600") as service:
        await service.until("service_started")
        service.process.send_signal(signal.SIGTERM)
        assert await service.exit_code() == 0
    assert service.names == ["service_started", "service_stopped"]


async def test_a_service_that_cannot_load_says_why_and_exits_1():
    async with kennel("--wild") as service:
        assert (await service.until("service_failed"))["detail"] == "the dog is wild"
        assert await service.exit_code() == 1


async def test_a_task_that_fails_while_serving_ends_the_service():
    async with kennel("--mortal-s", "0.2") as service:
        await service.until("service_ready")
        assert "the dog is gone" in str((await service.until("service_failed"))["exception"])
        assert await service.exit_code() == 1


async def test_a_taken_port_is_said_and_exits_1():
    async with kennel() as first:
        port = str((await first.until("service_started"))["address"]).rpartition(":")[2]
        async with kennel("--port", port) as second:
            assert port in str((await second.until("service_failed"))["detail"])
            assert await second.exit_code() == 1


@pytest.mark.parametrize("port_file", ["nope/kennel.port", "folder", "file/kennel.port"])
async def test_a_port_file_that_cannot_be_written_is_said_and_exits_1(tmp_path, port_file):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    async with kennel("--port-file", str(tmp_path / port_file)) as service:
        told = str((await service.until("service_failed"))["detail"])
        assert told.startswith(f"--port-file {tmp_path / port_file} cannot be written: ")
        assert await service.exit_code() == 1
    assert service.names == ["service_failed"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


async def test_an_orchestrator_says_why_no_verifier_is_ready():
    async with kennel("--verifier", "127.0.0.1:1", module="orchestrator") as service:
        address = str((await service.until("service_started"))["address"])
        awaited = await service.until("verifier_awaited")
        assert "Connection refused" in str(awaited["reason"])
        async with Client(address) as client:
            info = await client.stub.GetServerInfo(pb.GetServerInfoRequest(), timeout=5)
            assert [worker.reason for worker in info.workers] == [awaited["reason"]]
            await client.stub.GetLoads(pb.GenerationServiceGetLoadsRequest(), timeout=5)
            with pytest.raises(grpc.aio.AioRpcError) as error_info:
                await client.generate(pb.GenerateRequest(text="wau"), timeout_s=5)
        assert error_info.value.code() is grpc.StatusCode.UNAVAILABLE
        reason = f"no verifier is ready; 127.0.0.1:1: {awaited['reason']}"
        assert error_info.value.details() == reason
        await asyncio.sleep(1)  # several retries
        service.process.send_signal(signal.SIGTERM)
        assert await service.exit_code() == 0
    assert service.names.count("verifier_awaited") == 1
