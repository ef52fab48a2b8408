"""Measures are served while the service runs, from a registry of its own, and nowhere else."""

import asyncio
import json
import socket
import sys
import threading
import urllib.error
from pathlib import Path

import pytest
from prometheus_client import Counter

from outrider.serving.metrics import serving_metrics
from outrider.serving.settings import ServiceSettings
from tests.scrape import free_port, scrape

ROOT = Path(__file__).parents[3]


async def test_what_the_registry_holds_is_served_until_the_exit():
    port = free_port()
    async with serving_metrics(ServiceSettings(metrics_port=port)) as registry:
        barks = Counter("kennel_barks", "Barks.", registry=registry)
        barks.inc(3)
        text = await scrape(port)
        assert "\nkennel_barks_total 3.0\n" in text
        assert "process_open_fds" in text
        barks.inc()
        assert "\nkennel_barks_total 4.0\n" in await scrape(port)
    with pytest.raises(urllib.error.URLError):
        await scrape(port)
    assert not [t for t in threading.enumerate() if "serve_forever" in t.name]


async def test_two_services_of_a_process_share_nothing():
    one, other = free_port(), free_port()
    async with (
        serving_metrics(ServiceSettings(metrics_port=one)) as registry,
        serving_metrics(ServiceSettings(metrics_port=other)) as another,
    ):
        Counter("kennel_barks", "Barks.", registry=registry).inc()
        Counter("kennel_barks", "Barks.", registry=another)
        assert "\nkennel_barks_total 1.0\n" in await scrape(one)
        assert "\nkennel_barks_total 0.0\n" in await scrape(other)


async def test_without_a_port_nothing_listens():
    async with serving_metrics(ServiceSettings()) as registry:
        assert list(registry.collect())
        assert not [t for t in threading.enumerate() if "serve_forever" in t.name]


async def test_a_taken_port_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        settings = ServiceSettings(metrics_port=port)
        with pytest.raises(OSError, match=f"--metrics-port {port}: .*in use"):
            async with serving_metrics(settings):
                pass


async def test_a_service_whose_metrics_port_is_taken_says_so_and_exits_1():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        arguments = ("--verifier", "127.0.0.1:9", "--metrics-port", str(port))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "orchestrator", *arguments),
            stdout=asyncio.subprocess.PIPE,
            cwd=ROOT,
        )
        output, _ = await asyncio.wait_for(process.communicate(), 30)
    assert process.returncode == 1
    last = json.loads(output.splitlines()[-1])
    assert last["event"] == "service_failed"
    assert f"--metrics-port {port}" in last["detail"]
