"""The front door as a process: how it starts, how it stops, and alone."""

import asyncio
import signal
from contextlib import asynccontextmanager

import httpx2
import pytest

from outrider.v1 import generation_pb2_grpc
from tests.cluster import serving
from tests.integration.openai_svc.scripted import NAMES, Orchestrator, chunk, complete
from tests.integration.serving.test_process import kennel

pytestmark = pytest.mark.integration

MODULE = "openai_svc"
BODY = {"model": "m", "messages": [{"role": "user", "content": "x"}], "stream": True}


def opener(orchestrator: Orchestrator):
    @asynccontextmanager
    async def open_service():
        add = generation_pb2_grpc.add_GenerationServiceServicer_to_server
        yield lambda server: add(orchestrator, server)

    return open_service


async def test_sigterm_lets_a_running_stream_finish_then_exits_0(tmp_path):
    port_file, go_on = tmp_path / "openai.port", asyncio.Event()
    orchestrator = Orchestrator([chunk("a"), go_on, chunk("b"), complete()])
    async with (
        serving(NAMES, opener(orchestrator)) as address,
        kennel("--orchestrator", address, "--port-file", str(port_file), module=MODULE) as door,
    ):
        listening = str((await door.until("service_started"))["address"])
        assert port_file.read_text() == listening
        async with httpx2.AsyncClient(base_url=f"http://{listening}", timeout=20) as http:
            assert (await http.get("/health")).json() == {"status": "ready"}
            async with http.stream("POST", "/v1/chat/completions", json=BODY) as answer:
                events = answer.aiter_lines()
                assert '"role":"assistant"' in await anext(events)
                door.process.send_signal(signal.SIGTERM)
                await door.until("service_draining")
                go_on.set()
                rest = [line async for line in events if line]
        assert '"content":"b"' in rest[-3]
        assert rest[-1] == "data: [DONE]"
        assert await door.exit_code() == 0
    assert door.names == [
        "service_started",
        "service_draining",
        "request_finished",
        "service_stopped",
    ]
    assert {event["service"] for event in door.events} == {"openai"}
    finished = door.events[2]
    assert (finished["status"], finished["route"]) == (200, "/v1/chat/completions")
    assert finished["request_id"] == orchestrator.request_ids[0]
    assert not port_file.exists()


async def test_a_second_signal_cuts_what_still_runs():
    orchestrator = Orchestrator([chunk("a"), asyncio.Event()])
    async with (
        serving(NAMES, opener(orchestrator)) as address,
        kennel("--orchestrator", address, "--grace-s", "600", module=MODULE) as door,
    ):
        listening = str((await door.until("service_started"))["address"])
        async with (
            httpx2.AsyncClient(base_url=f"http://{listening}", timeout=20) as http,
            http.stream("POST", "/v1/chat/completions", json=BODY) as answer,
        ):
            lines = answer.aiter_lines()
            await anext(lines)
            door.process.send_signal(signal.SIGTERM)
            await door.until("service_draining")
            door.process.send_signal(signal.SIGTERM)
            with pytest.raises(httpx2.HTTPError):
                [line async for line in lines]
        assert await door.exit_code() == 0
        await asyncio.wait_for(orchestrator.was_cancelled.wait(), 20)


async def test_without_an_orchestrator_it_is_there_and_says_so():
    async with kennel("--orchestrator", "127.0.0.1:1", module=MODULE) as door:
        listening = str((await door.until("service_started"))["address"])
        async with httpx2.AsyncClient(base_url=f"http://{listening}", timeout=20) as http:
            health = await http.get("/health")
            answer = await http.post("/v1/chat/completions", json=BODY)
        assert (health.status_code, health.json()["status"]) == (503, "unavailable")
        assert "Connection refused" in health.json()["orchestrator"]
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
        door.process.send_signal(signal.SIGTERM)
        assert await door.exit_code() == 0


async def test_a_taken_port_is_said_and_exits_1():
    async with kennel("--orchestrator", "127.0.0.1:1", module=MODULE) as first:
        port = str((await first.until("service_started"))["address"]).rpartition(":")[2]
        async with kennel("--orchestrator", "a:1", "--port", port, module=MODULE) as second:
            assert port in str((await second.until("service_failed"))["detail"])
            assert await second.exit_code() == 1
