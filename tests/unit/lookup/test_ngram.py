"""The n-gram index against a search that reads the whole sequence."""

import random
import sys

import pytest

from outrider.lookup.ngram import NgramIndex


def propose_oracle(token_ids: list[int], count: int, *, min_n: int, max_n: int) -> list[int]:
    for n in range(min(max_n, len(token_ids)), min_n - 1, -1):
        ending = token_ids[len(token_ids) - n :]
        for end in range(len(token_ids) - 1, n - 1, -1):
            if token_ids[end - n : end] == ending:
                extended = list(token_ids)
                for i in range(count):
                    extended.append(extended[end + i])
                return extended[len(token_ids) :]
    return []


@pytest.mark.parametrize("seed", range(30))
def test_agrees_with_the_oracle_through_any_extends_and_truncates(seed):
    rng = random.Random(seed)
    min_n = rng.randint(1, 3)
    sizes = {"min_n": min_n, "max_n": min_n + rng.randint(0, 3)}
    index = NgramIndex(**sizes)
    alphabet = rng.choice([1, 2, 3, 8])
    token_ids: list[int] = []
    for _ in range(60):
        if rng.random() < 0.3:
            token_ids = token_ids[: rng.randint(0, len(token_ids))]
            index.truncate(len(token_ids))
        new = [rng.randrange(alphabet) for _ in range(rng.randint(0, 5))]
        token_ids += new
        index.extend(new)
        after = [rng.randrange(alphabet) for _ in range(rng.randint(0, 4))]
        count = rng.randint(0, 7)
        assert index.propose(count, after=after) == propose_oracle(
            token_ids + after, count, **sizes
        )
        assert index.propose(count) == propose_oracle(token_ids, count, **sizes)
        assert len(index) == len(token_ids)


def test_truncating_to_nothing_leaves_nothing():
    index = NgramIndex()
    index.extend([1, 2, 3] * 50)
    index.truncate(0)
    assert len(index) == 0
    assert index.propose(4) == []
    assert index._ends == {}


@pytest.mark.parametrize(
    ("token_ids", "proposed"),
    [
        ([], []),
        ([1], []),
        ([1, 2, 3, 4], []),
        ([1, 2, 9, 1, 2], [9, 1, 2, 9]),
        ([5, 5, 5], [5, 5, 5, 5]),
        ([1, 2, 3, 7, 1, 2, 4, 1, 2], [4, 1, 2, 4]),
        ([8, 1, 2, 3, 6, 9, 1, 2, 4, 8, 1, 2], [3, 6, 9, 1]),
    ],
    ids=["empty", "one", "new", "repeat", "period", "latest", "longest before latest"],
)
def test_what_is_proposed(token_ids, proposed):
    index = NgramIndex()
    index.extend(token_ids)
    assert index.propose(4) == proposed


def num_lines_run(action) -> int:
    """Lines of Python that an action runs: a cost without a clock."""
    count = 0

    def trace(frame, event, argument):
        nonlocal count
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        action()
    finally:
        sys.settrace(before)
    return count


class CountingId(int):
    """A token id that counts how often it is hashed or compared."""

    num_uses = 0

    def __hash__(self) -> int:
        CountingId.num_uses += 1
        return int.__hash__(self)

    def __eq__(self, other: object) -> bool:
        CountingId.num_uses += 1
        return int.__eq__(self, other)


def test_the_cost_of_a_call_does_not_grow_with_the_sequence():
    period = [CountingId(i) for i in range(50)]
    costs = []
    for repeats in (2, 200):
        index = NgramIndex()
        index.extend(period * repeats)
        CountingId.num_uses = 0
        actions = [
            lambda index=index: index.propose(8),
            lambda index=index: index.propose(8, after=period[:3]),
            lambda index=index: index.extend(period[:3]),
            lambda index=index: index.truncate(len(index) - 3),
        ]
        costs.append(([num_lines_run(action) for action in actions], CountingId.num_uses))
    assert costs[0] == costs[1]


@pytest.mark.parametrize(("min_n", "max_n"), [(0, 3), (3, 2)])
def test_refuses_sizes_that_index_nothing(min_n, max_n):
    with pytest.raises(ValueError, match="n-grams"):
        NgramIndex(min_n=min_n, max_n=max_n)


@pytest.mark.parametrize("length", [-1, 4])
def test_refuses_to_truncate_to_what_is_not_there(length):
    index = NgramIndex()
    index.extend([1, 2, 3])
    with pytest.raises(ValueError, match="cannot truncate"):
        index.truncate(length)


def test_what_may_follow_is_named_longest_and_latest_first():
    index = NgramIndex()
    index.extend([9, 1, 2, 5, 8, 1, 2, 6, 7, 1, 2, 7, 9, 1, 2])
    assert index.following(4) == [5, 7, 6]
    assert index.following(2) == [5, 7]
    assert index.following(4)[0] == index.propose(1)[0]
    assert index.following(4, after=[6, 7, 1, 2])[0] == 7
    assert index.following(4, after=[30, 31]) == []
    assert len(index) == 15
