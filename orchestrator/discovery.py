"""Which workers there are: a fixed list, or what a DNS name resolves to, asked again and again."""

import asyncio
import re
import socket
from collections.abc import AsyncIterator

import structlog

RESOLVE_EVERY_S = 2.0
_DNS = re.compile(r"dns:(?://[^/]*/)?(?P<host>\[[^\]]+\]|[^:]+):(?P<port>\d+)")

log = structlog.get_logger()


def is_name(target: str) -> bool:
    """True for a name behind which addresses may come and go."""
    return _DNS.fullmatch(target) is not None


async def addresses_of(target: str, every_s: float = RESOLVE_EVERY_S) -> AsyncIterator[set[str]]:
    """Yield the addresses of a target at every change; one that is no DNS name never changes.

    A name that cannot be resolved any more keeps what it had: a resolver that fails must not take
    healthy workers away.
    """
    match = _DNS.fullmatch(target)
    if match is None:
        yield {target}
        return
    host, port = match["host"].strip("[]"), int(match["port"])
    known: set[str] | None = None
    problem = ""
    while True:
        try:
            found = await _resolve(host, port)
        except OSError as error:
            if str(error) != problem:
                problem = str(error)
                log.warning("name_not_resolved", target=target, reason=problem)
        else:
            problem = ""
            if found != known:
                known = found
                yield found
        await asyncio.sleep(every_s)


async def _resolve(host: str, port: int) -> set[str]:
    loop = asyncio.get_running_loop()
    entries = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return {
        f"[{address[0]}]:{port}" if family == socket.AF_INET6 else f"{address[0]}:{port}"
        for family, _, _, _, address in entries
    }
