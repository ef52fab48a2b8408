"""The port of the front door."""

import asyncio
import socket

import pytest

from openai_svc.server import listen


async def test_answers_are_sent_at_once():
    """Else each short one waits for the acknowledgement of its head, 40 ms later."""
    was_set: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    def connected(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = writer.get_extra_info("socket")
        was_set.set_result(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        writer.close()

    listener = listen("127.0.0.1", 0)
    async with await asyncio.start_server(connected, sock=listener):
        _, writer = await asyncio.open_connection(*listener.getsockname())
        assert await was_set
        writer.close()
        await writer.wait_closed()


def test_a_port_that_cannot_be_had_is_named():
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1:{port}: "):
            listen("127.0.0.1", port)
    with pytest.raises(OSError, match=r"cannot listen on 192\.0\.2\.1:0: "):
        listen("192.0.2.1", 0)
