"""What a draft would have been worth is read off the tokens that came."""

import asyncio

import pytest

from orchestrator.estimates import VerifyCost
from orchestrator.kept_features import StepFeatures
from orchestrator.shadow import Output, ShadowRecord, confirmed
from orchestrator.verdict import Origin
from outrider.draft import Draft
from tests.unit.orchestrator.test_estimates import verdict


@pytest.mark.parametrize(
    ("following", "nodes", "is_settled"),
    [
        ([], (), False),
        ([9], (), True),
        ([5], (0,), False),
        ([5, 9], (0,), True),
        ([5, 6, 7], (0, 1, 2), True),
        ([5, 6, 7, 8], (0, 1, 2), True),
        ([5, 6], (0, 1), False),
    ],
)
def test_a_chain(following, nodes, is_settled):
    assert confirmed(Draft((5, 6, 7)), following) == (nodes, is_settled)


# 5 -> 6 -> 7
#   -> 8
# 9
TREE = Draft((5, 6, 7, 8, 9), parents=(-1, 0, 1, 0, -1))


@pytest.mark.parametrize(
    ("following", "nodes", "is_settled"),
    [
        ([], (), False),
        ([9], (4,), True),
        ([5], (0,), False),
        ([5, 8], (0, 3), True),
        ([5, 6], (0, 1), False),
        ([5, 6, 7, 1], (0, 1, 2), True),
        ([5, 7], (0,), True),
        ([6], (), True),
    ],
)
def test_a_tree(following, nodes, is_settled):
    assert confirmed(TREE, following) == (nodes, is_settled)


def test_probes_are_never_accepted():
    probed = Draft((5, 6), parents=(-1, 0), probes=(False, True))
    assert confirmed(probed, [5, 6]) == ((0,), True)
    only = Draft((5,), parents=(-1,), probes=(True,))
    assert confirmed(only, [5]) == ((), True)
    assert confirmed(only, []) == ((), True)


def test_no_draft_is_settled_at_once():
    assert confirmed(Draft(), []) == ((), True)


def known_cost() -> VerifyCost:
    """10 ms a pass and 1 ms a row more, 2 ms beside it."""
    cost = VerifyCost()
    for rows in (1, 2, 3, 4, 5):
        cost.by_rows.observe(rows, 9.0 + rows)
    cost.beside.observe(2.0)
    cost.pool_usage = 0.5
    return cost


def test_the_verdict_that_would_have_been():
    record = ShadowRecord("output")
    draft = Draft((5, 6, 7))
    made = record.verdict(draft, (0, 1), 9, known_cost())
    assert (made.accepted_nodes, made.next_token_id) == ((0, 1), 9)
    assert made.next_origin is Origin.RECOVERED
    assert (made.round_trip_ms, made.compute_ms) == (15.0, 13.0)
    assert record.target_only_ms == 3 * 12.0
    assert made.num_passes == 0, "so that nobody learns from it what a pass takes"
    assert made.pool_usage == 0.5
    assert record.verdict(draft, (0, 1, 2), 9, known_cost()).next_origin is Origin.BONUS
    assert record.verdict(Draft(), (), 9, known_cost()).next_origin is Origin.ONLY


def test_what_the_target_told_is_handed_over_with_what_is_committed():
    output = Output([1, 2, 3])
    for token_id in (4, 5, 6):
        output.grow(verdict(0, next_token_id=token_id, features=StepFeatures((1,), (token_id,))))
    assert output.token_ids == [1, 2, 3, 4, 5, 6]
    assert [each.features.chunks for each in output.lessons_below(4)] == [(4,), (5,)]
    assert output.lessons_below(4) == []
    assert [each.features.chunks for each in output.lessons_below(9)] == [(6,)]


async def test_who_waits_for_the_output_is_woken():
    output = Output([1])
    waiting = asyncio.create_task(output.grown())
    await asyncio.sleep(0)
    assert not waiting.done()
    output.grow(verdict(0))
    await asyncio.wait_for(waiting, 1)
    again = asyncio.create_task(output.grown())
    await asyncio.sleep(0)
    assert not again.done(), "what was seen once is not news"
    again.cancel()
