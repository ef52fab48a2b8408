"""4. A worker that lacks positions answers ContextNeeded on the open stream.

No status code is ever used for that.
"""

import pytest

from tests.conformance.conftest import Worker
from tests.conformance.wire import draft_stream, verify_stream

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.integration]
PROMPT = [10, 20, 30, 40]


async def test_a_verifier_asks_for_what_it_lacks_and_goes_on(verifier: Worker) -> None:
    async with verify_stream(verifier.address, salt="c04") as stream:
        needed = await stream.step([*PROMPT, 50], start=4)
        assert needed.WhichOneof("kind") == "context_needed"
        assert needed.context_needed.have_length == 0
        assert needed.context_needed.cycle == stream.cycle
        answer = await stream.step([*PROMPT, 50])
        assert answer.WhichOneof("kind") == "verdict"
        needed = await stream.step(list(range(20)), start=19)
        assert needed.context_needed.have_length == 5


async def test_another_prefix_is_asked_for_from_the_beginning(verifier: Worker) -> None:
    async with verify_stream(verifier.address, salt="c04") as stream:
        await stream.step(PROMPT)
        needed = await stream.step([10, 21, 30, 40, 50], start=4)
        assert needed.WhichOneof("kind") == "context_needed"
        assert needed.context_needed.have_length == 0
        answer = await stream.step([10, 21, 30, 40, 50])
        assert answer.verdict.cache_length == 5


async def test_a_drafter_asks_for_what_it_lacks_and_goes_on(drafter: Worker) -> None:
    async with draft_stream(drafter.address) as stream:
        cycle = await stream.advance([*PROMPT, 50], start=4)
        needed = (await stream.read()).context_needed
        assert (needed.have_length, needed.cycle) == (0, cycle)
        await stream.advance([*PROMPT, 50])
        assert (await stream.read()).block.base_length == 5


async def test_kv_that_an_idle_lease_lost_is_asked_for(verifier: Worker) -> None:
    long = list(range(120))
    async with verify_stream(verifier.address, salt="c04-idle") as idle:
        assert (await idle.step(long)).verdict.cache_length == 120
        others = []
        for index in range(20):  # 20 times 120 positions do not fit beside it into 2048
            stream = verify_stream(verifier.address, salt=f"c04-{index}")
            others.append((stream, await stream.__aenter__()))
            await others[-1][1].step(long)
        needed = await idle.step([*long, 1], start=120)
        assert needed.WhichOneof("kind") == "context_needed"
        answer = await idle.step([*long, 1], start=needed.context_needed.have_length)
        assert answer.verdict.cache_length == 121
        for stream, _ in others:
            await stream.__aexit__(None, None, None)
    await verifier.freed()
