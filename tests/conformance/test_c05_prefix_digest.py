"""5. prefix_digest is BLAKE2b with 8 bytes over the little-endian int32 ids of [0, start)."""

import hashlib
import struct

import pytest

from tests.conformance.conftest import Worker
from tests.conformance.wire import verify_stream

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.integration]
PROMPT = [10, 20, 300, 40]


async def test_a_digest_made_by_the_book_is_understood(verifier: Worker) -> None:
    packed = struct.pack("<4i", *PROMPT)
    digest = hashlib.blake2b(packed, digest_size=8).digest()
    async with verify_stream(verifier.address, salt="c05") as stream:
        await stream.step(PROMPT)
        answer = await stream.step([*PROMPT, 50], start=4, digest=digest)
        assert answer.WhichOneof("kind") == "verdict"


async def test_any_other_digest_is_not(verifier: Worker) -> None:
    async with verify_stream(verifier.address, salt="c05") as stream:
        await stream.step(PROMPT)
        for digest in (b"", bytes(8), hashlib.blake2b(b"", digest_size=8).digest()):
            answer = await stream.step([*PROMPT, 50], start=4, digest=digest)
            assert answer.WhichOneof("kind") == "context_needed"
            assert (await stream.step(PROMPT)).WhichOneof("kind") == "verdict"
