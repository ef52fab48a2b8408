"""What a stream of requests begins with."""

from collections.abc import AsyncIterator
from typing import TypeVar

from outrider.errors import InvalidField

Message = TypeVar("Message")


async def first_message(requests: AsyncIterator[Message]) -> Message:
    """Return the first message; Raises: InvalidField if the stream ends without any."""
    async for message in requests:
        return message
    raise InvalidField("kind", "the stream ended before its first message, an open")
