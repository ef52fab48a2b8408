"""Channels from one service, or a client, to another."""

import grpc

from outrider.serving.options import channel_options


def open_channel(address: str) -> grpc.aio.Channel:
    """A channel to host:port that reconnects by itself; close it with ``await channel.close()``."""
    return grpc.aio.insecure_channel(address, options=channel_options())


def open_blocking_channel(address: str) -> grpc.Channel:
    """The same for threads without an event loop; close it with ``channel.close()``."""
    return grpc.insecure_channel(address, options=channel_options())
