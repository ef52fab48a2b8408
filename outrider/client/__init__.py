"""Python clients of the orchestrator: ``Client`` for asyncio, ``SyncClient`` for all others."""

from outrider.client.asynchronous import Client
from outrider.client.output import Choice, Output, collect
from outrider.client.request import Message, Prompt, generate_request
from outrider.client.synchronous import SyncClient

__all__ = [
    "Choice",
    "Client",
    "Message",
    "Output",
    "Prompt",
    "SyncClient",
    "collect",
    "generate_request",
]
