"""Lookahead: what comes down the columns of the window is what the target says there."""

import random

import pytest

from outrider.lookup.lookahead import MAX_GUESSES, NGRAM, Lookahead, NgramPool
from outrider.tree import TreeLayout


def say(text: tuple[int, ...]) -> int:
    """A target: a function of the last three ids."""
    return random.Random(f"{text[-3:]}").randrange(12)


def verify(committed: list[int], probing) -> list[int]:
    """Return the target's choice behind the last committed id and behind every node."""
    texts = [tuple(committed)]
    for token_id, parent in zip(probing.token_ids, probing.parents, strict=True):
        texts.append((*texts[parent + 1], token_id))
    return [say(text) for text in texts]


@pytest.mark.parametrize("num_nodes", [6, 12, 24, 31])
def test_columns_grow_by_what_the_target_says_and_fill_the_pool(num_nodes):
    lookahead, committed = Lookahead(), [3, 1, 4, 1, 5]
    accepted = 0
    for _ in range(60):
        probing = lookahead.draft(committed, num_nodes)
        assert len(probing.token_ids) <= num_nodes
        layout = TreeLayout.of(probing.parents)
        said = verify(committed, probing)
        # Every node of a column is what the target said behind the one above it, a turn ago.
        node, below = -1, said[0]
        while True:
            following = [
                n
                for n, parent in enumerate(probing.parents)
                if parent == node and not probing.probes[n] and probing.token_ids[n] == below
            ]
            if not following:
                break
            node = following[0]
            committed.append(below)
            accepted += 1
            below = said[node + 1]
        committed.append(below)
        lookahead.learn(probing, said[1:])
        assert any(probing.probes)
        for path in layout.paths:
            kinds = [probing.probes[n] for n in path.nodes]
            assert kinds in ([True] * len(kinds), [False] * len(kinds)), "probes stand apart"
    assert accepted > 0, "a target that repeats itself is foreseen"
    # What the pool knows has been said: an n-gram's last token follows from the ones before it
    # as far as the target looks back.
    for first, tails in lookahead.pool._tails.items():
        for tail in tails:
            assert len(tail) == NGRAM - 1
            if NGRAM > 3:
                assert tail[-1] == say((first, *tail[:-1]))


def test_a_draft_that_was_cut_or_of_another_size_teaches_nothing():
    lookahead = Lookahead()
    probing = lookahead.draft([1, 2, 3], 1)
    assert probing.newest in ((), (0,))
    wide = lookahead.draft([1, 2, 3], 24)
    lookahead.draft([1, 2, 3], 6)  # the window was laid out anew
    before = len(lookahead.pool)
    lookahead.learn(wide, [0] * len(wide.token_ids))
    assert len(lookahead.pool) == before


def test_the_pool_is_bounded_and_the_latest_come_first():
    pool = NgramPool()
    for last in range(20):
        pool.add([7, 1, last])
    pool.add([7, 1, 15])
    tails = pool.tails(7)
    assert len(tails) == MAX_GUESSES
    assert tails[:2] == [(1, 15), (1, 19)]
    assert pool.tails(8) == []
