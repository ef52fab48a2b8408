"""One timer for many waits ends what ``asyncio.timeout`` would end, and nothing else."""

import asyncio

import pytest

from orchestrator.deadline import Deadline

SHORT_S = 0.02


async def test_a_wait_that_is_too_long_ends_with_a_timeout() -> None:
    deadline = Deadline()
    with pytest.raises(TimeoutError), deadline.within(SHORT_S):
        await asyncio.sleep(60)
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


async def test_waits_that_end_in_time_leave_each_other_their_time() -> None:
    deadline = Deadline()
    for _ in range(5):  # longer together than each may be
        with deadline.within(3 * SHORT_S):
            await asyncio.sleep(SHORT_S)
    with pytest.raises(TimeoutError), deadline.within(SHORT_S):
        await asyncio.sleep(60)


async def test_a_shorter_wait_does_not_last_as_long_as_the_one_before() -> None:
    deadline = Deadline()
    with deadline.within(60):
        await asyncio.sleep(0)
    with pytest.raises(TimeoutError), deadline.within(SHORT_S):
        await asyncio.sleep(60)


async def test_nothing_is_cancelled_between_waits() -> None:
    deadline = Deadline()
    with deadline.within(SHORT_S):
        await asyncio.sleep(0)
    await asyncio.sleep(3 * SHORT_S)


async def test_a_wait_can_begin_anew() -> None:
    deadline = Deadline()
    with deadline.within(2 * SHORT_S):
        for _ in range(4):
            await asyncio.sleep(SHORT_S)
            deadline.within(2 * SHORT_S)


async def test_a_cancel_from_outside_stays_a_cancel() -> None:
    async def wait() -> None:
        with Deadline().within(60):
            await asyncio.sleep(60)

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_cancel_that_comes_with_the_end_of_the_wait_stays_a_cancel() -> None:
    deadline = Deadline()

    async def wait() -> None:
        with deadline.within(60):
            await asyncio.sleep(60)

    task = asyncio.create_task(wait())
    await asyncio.sleep(0)
    deadline._ends_at = 0.0
    deadline._ring()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_failure_passes_through() -> None:
    with pytest.raises(ValueError, match="mine"), Deadline().within(60):
        raise ValueError("mine")


async def test_close_drops_the_timer() -> None:
    deadline = Deadline()
    with deadline.within(60):
        pass
    deadline.close()
    assert deadline._timer is None


async def test_a_wait_goes_on_for_as_long_as_it_is_said_at_its_end() -> None:
    deadline, lengthenings = Deadline(), iter([SHORT_S, 2 * SHORT_S, 0.0])
    loop = asyncio.get_running_loop()
    began_s = loop.time()
    with pytest.raises(TimeoutError), deadline.within(SHORT_S, lambda: next(lengthenings)):
        await asyncio.sleep(60)
    assert loop.time() - began_s >= 4 * SHORT_S
    with pytest.raises(TimeoutError), deadline.within(SHORT_S):
        await asyncio.sleep(60)
