"""The queue is bounded, keeps its order and gives every slot back."""

import asyncio

import pytest

from orchestrator.admission import Admission
from outrider.errors import InvalidField, ResourceExhausted


async def hold(
    admission: Admission, name: str, order: list[str], release: asyncio.Event, priority: int = 0
) -> None:
    async with admission.slot(priority):
        order.append(name)
        await release.wait()


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_requests_wait_in_order_and_more_are_refused():
    admission, order, release = Admission(1, 2), [], asyncio.Event()
    tasks = []
    for name in "abc":
        tasks.append(asyncio.create_task(hold(admission, name, order, release)))
        await settle()
    assert (admission.num_running, admission.num_waiting) == (1, 2)
    with pytest.raises(ResourceExhausted, match="1 requests run and 2 wait"):
        async with admission.slot():
            pass
    release.set()
    await asyncio.gather(*tasks)
    assert order == ["a", "b", "c"]
    assert (admission.num_running, admission.num_waiting) == (0, 0)


async def test_higher_priorities_go_first_and_equals_in_order():
    admission, order, release = Admission(1, 5), [], asyncio.Event()
    tasks = []
    for name, priority in (("a", -5), ("b", 0), ("c", -1), ("d", 7), ("e", 0), ("f", 7)):
        tasks.append(asyncio.create_task(hold(admission, name, order, release, priority)))
        await settle()
    release.set()
    await asyncio.gather(*tasks)
    assert order == ["a", "d", "f", "b", "e", "c"]
    assert (admission.num_running, admission.num_waiting) == (0, 0)


async def test_a_slot_that_is_granted_to_one_who_leaves_goes_on_to_the_next():
    admission, order = Admission(1, 3), []
    first, others = asyncio.Event(), asyncio.Event()
    running = asyncio.create_task(hold(admission, "first", order, first))
    await settle()
    leaves = asyncio.create_task(hold(admission, "leaves", order, others))
    await settle()
    stays = asyncio.create_task(hold(admission, "stays", order, others))
    await settle()
    first.set()
    await running  # its slot is granted, but who gets it has not run since
    leaves.cancel()
    others.set()
    await asyncio.gather(leaves, stays, return_exceptions=True)
    assert order[-1] == "stays"
    assert (admission.num_running, admission.num_waiting) == (0, 0)


async def test_who_gives_up_waiting_leaves_no_trace():
    admission, order, release = Admission(1, 1), [], asyncio.Event()
    first = asyncio.create_task(hold(admission, "first", order, release))
    await settle()
    second = asyncio.create_task(hold(admission, "second", order, release))
    await settle()
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    assert admission.num_waiting == 0
    third = asyncio.create_task(hold(admission, "third", order, release))
    await settle()
    release.set()
    await asyncio.gather(first, third)
    assert order == ["first", "third"]


async def test_a_failure_gives_the_slot_back():
    admission = Admission(1, 0)
    for _ in range(3):
        with pytest.raises(ValueError, match="x"):
            async with admission.slot():
                raise ValueError("x")
    assert admission.num_running == 0


async def test_a_free_slot_is_taken_though_nobody_may_wait():
    admission = Admission(1, 0)
    async with admission.slot():
        assert (admission.num_running, admission.num_waiting) == (1, 0)


async def test_places_count_as_waiting_until_they_become_slots():
    admission = Admission(2, 2)
    with admission.places(3) as places:
        assert (admission.num_running, admission.num_waiting) == (0, 3)
        with pytest.raises(ResourceExhausted, match="0 requests run and 3 wait"):
            admission.places(2).__enter__()
        async with admission.slot():  # the last place, and a slot is free
            async with admission.slot(places=places):
                assert (admission.num_running, admission.num_waiting) == (2, 2)
                with pytest.raises(ResourceExhausted):
                    async with admission.slot():
                        pass
            async with admission.slot(places=places):
                assert (admission.num_running, admission.num_waiting) == (2, 1)
        assert (admission.num_running, admission.num_waiting) == (0, 1)
    assert (admission.num_running, admission.num_waiting) == (0, 0)


async def test_choices_wait_for_slots_like_others_and_never_for_more_than_there_are():
    admission, order, release = Admission(1, 4), [], asyncio.Event()

    async def choice(name: str, places) -> None:
        async with admission.slot(places=places):
            order.append(name)
            await release.wait()

    with admission.places(4) as places:
        first = asyncio.create_task(choice("0", places))
        await settle()
        other = asyncio.create_task(hold(admission, "other", order, release))
        await settle()
        rest = [asyncio.create_task(choice(name, places)) for name in "123"]
        await settle()
        assert (admission.num_running, admission.num_waiting) == (1, 4)
        release.set()
        await asyncio.gather(first, other, *rest)
    assert order == ["0", "other", "1", "2", "3"]
    assert (admission.num_running, admission.num_waiting) == (0, 0)


def test_more_choices_than_there_is_room_for_at_all_are_no_matter_of_waiting():
    with pytest.raises(InvalidField, match=r"^sampling_params\.n: 5 choices, at most 4"):
        Admission(1, 3).places(5).__enter__()
    with Admission(1, 3).places(4):
        pass


async def test_a_failure_gives_all_places_back():
    admission = Admission(1, 3)
    with pytest.raises(ValueError, match="x"), admission.places(3) as places:
        async with admission.slot(places=places):
            raise ValueError("x")
    assert (admission.num_running, admission.num_waiting) == (0, 0)
