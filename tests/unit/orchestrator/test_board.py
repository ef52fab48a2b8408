"""A block leaves the board for the one sequence it fits, or counted as discarded."""

import asyncio

import pytest

from orchestrator.board import MAX_BLOCKS, DraftBlock, DraftBoard
from outrider.draft import Draft

BASE = [1, 2, 3]


def block(path: tuple[int, ...], *draft: int, base: int = 3) -> DraftBlock:
    return DraftBlock(base, path, Draft(draft, "model"))


def board(*blocks: DraftBlock) -> DraftBoard:
    made = DraftBoard()
    for each in blocks:
        made.post(each)
    return made


@pytest.mark.parametrize(
    ("posted", "after", "taken", "discarded"),
    [
        pytest.param([], [], None, 0, id="empty board"),
        pytest.param([block((), 7, 8)], [], (7, 8), 0, id="of the sequence itself"),
        pytest.param([block((4, 5), 7, 8)], [4, 5], (7, 8), 0, id="guess came true"),
        pytest.param([block((4, 5), 7, 8)], [4, 6], None, 2, id="guess was wrong"),
        pytest.param([block((4, 5), 7, 8)], [4], None, 0, id="still may come true"),
        pytest.param([block((4,), 7, 8)], [4, 7], None, 2, id="outgrown"),
        pytest.param([block((4,), 7), block((5,), 8, 9)], [5], (8, 9), 1, id="two outcomes"),
        pytest.param(
            [block((4, 5), 7), block((5, 6), 8)], [5], None, 1, id="no way there any more"
        ),
        pytest.param([block((4, 5), 7), block((5,), 8), block((4, 6), 9)], [4, 6], (9,), 2, id="3"),
        pytest.param([block((4,), 7), block((4, 5), 8)], [4, 5], (8,), 1, id="the longer outcome"),
        pytest.param([block((4,), 7), block((4, 5), 8)], [4], (7,), 0, id="the shorter outcome"),
        pytest.param([block((4,), 7), block((5,), 8)], [6], None, 2, id="none of the outcomes"),
        pytest.param([block((4,), 7), block((4,), 8)], [4], (8,), 1, id="the later replaces"),
        pytest.param([block((4,))], [4], None, 0, id="an empty block is none"),
        pytest.param([block((3, 4), 7, base=2)], [4], (7,), 0, id="older base, same ids"),
        pytest.param([block((9, 4), 7, base=2)], [4], None, 1, id="older base, other ids"),
    ],
)
def test_take(posted, after, taken, discarded):
    made = board(*posted)
    draft = made.take([*BASE, *after], 0)
    assert (None if draft is None else draft.token_ids) == taken
    assert made.num_discarded_tokens == discarded


def bound(path: tuple[int, ...], *draft: int, cycle: int, base: int = 3) -> DraftBlock:
    return DraftBlock(base, path, Draft(draft, "model"), for_cycle=cycle)


@pytest.mark.parametrize(
    ("posted", "cycle", "taken", "discarded"),
    [
        pytest.param([bound((4,), 7, 8, cycle=2)], 2, (7, 8), 0, id="its own cycle"),
        pytest.param([bound((4,), 7, 8, cycle=2)], 3, None, 2, id="late"),
        pytest.param([bound((4,), 7, 8, cycle=3)], 2, None, 2, id="fits too early"),
        pytest.param([bound((4, 5), 7, 8, cycle=3)], 2, None, 0, id="may still come true"),
        pytest.param([bound((4, 5), 7, 8, cycle=2)], 3, None, 2, id="late, though it may fit"),
    ],
)
def test_a_block_of_one_cycle_serves_no_other(posted, cycle, taken, discarded):
    made = board(*posted)
    draft = made.take([*BASE, 4], cycle)
    assert (None if draft is None else draft.token_ids) == taken
    assert made.num_discarded_tokens == discarded


def test_a_draft_is_taken_once():
    made = board(block((), 7, 8))
    assert made.take(BASE, 0) is not None
    assert made.take(BASE, 0) is None


def test_the_oldest_block_gives_way_to_the_one_too_many():
    made = board(*(block((4,), 7, base=3 + n) for n in range(MAX_BLOCKS + 1)))
    assert made.num_discarded_tokens == 1
    assert made.take([*BASE, 4], 0) is None, "the oldest was the one that fits"


def test_clearing_counts_what_was_never_used():
    made = board(block((4,), 7), block((5, 6), 8, 9))
    made.clear()
    made.clear()
    assert made.num_discarded_tokens == 3
    assert made.num_stale_blocks == 2
    assert made.take([*BASE, 4], 0) is None


@pytest.mark.parametrize("wake", ["post", "empty post", "wake"])
async def test_who_waits_is_woken(wake):
    made = board(block((4,), 7))
    made.take(BASE, 0)
    waiting = asyncio.create_task(made.wait())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waiting.done(), "a post before the last take must not wake a later wait"
    match wake:
        case "post":
            made.post(block((), 7))
        case "empty post":
            made.post(block(()))
        case "wake":
            made.wake()
    await asyncio.wait_for(waiting, 1)


async def test_a_post_between_take_and_wait_is_not_missed():
    made = board()
    made.take(BASE, 0)
    made.post(block((), 7))  # while the asking itself was still being written
    await asyncio.wait_for(made.wait(), 1)
