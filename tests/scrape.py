"""Reads the measures of a service as Prometheus does."""

import asyncio
import socket
import urllib.request


def free_port() -> int:
    """Return a port that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


async def scrape(port: int) -> str:
    """Return the text that /metrics answers."""

    def read() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
            return str(answer.read().decode())

    return await asyncio.to_thread(read)
