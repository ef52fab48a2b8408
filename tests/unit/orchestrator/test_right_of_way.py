"""Drafts of low priorities share what the budget leaves; the highest owe nothing to anyone."""

import pytest

from orchestrator.draft_length import DraftLength, Reason
from orchestrator.estimates import VerifyCost
from orchestrator.policy import plan_of
from orchestrator.right_of_way import RightOfWay
from outrider.draft import Draft
from outrider.policy import SpeculationOptions, Traits, decide, policy_of_flags
from tests.unit.orchestrator.test_draft_length import verdict


def cost(rows: int = 10, row_ms: float = 1.0, base_ms: float = 30.0) -> VerifyCost:
    """Passes of ``rows`` sequences that take ``base_ms`` and ``row_ms`` a row."""
    known = VerifyCost()
    for total in (1, rows, 4 * rows):
        known.by_rows.observe(total, base_ms + row_ms * total)
    known.observe(Draft(), verdict(0, compute_ms=base_ms + row_ms * rows, round_trip_ms=41))
    known.own_rows.value, known.other_rows.value, known.num_leases.value = 1, rows - 1, rows
    return known


def test_what_the_budget_allows_is_what_a_pass_may_grow_by():
    assert cost().rows_within(0.1) == 4  # of 40 ms, at 1 ms a row
    assert cost().rows_within(0.0) == 0
    assert cost(row_ms=0.0).rows_within(0.1) > 1000
    assert VerifyCost().rows_within(0.5) == 0, "nothing is known yet"


def test_lower_priorities_share_it_while_a_higher_one_runs():
    ways = RightOfWay(0.5)  # 20 rows
    known = cost()
    with ways.hold("t", 0), ways.hold("t", 0), ways.hold("t", -3):
        assert ways.most_tokens("t", 0, known) is None
        assert ways.most_tokens("t", -3, known) == 20
        with ways.hold("t", 5):
            assert ways.most_tokens("t", 5, known) is None
            assert ways.most_tokens("t", 0, known) == ways.most_tokens("t", -3, known) == 6
            assert ways.most_tokens("other target", -3, known) is None
        assert ways.most_tokens("t", 0, known) is None
    assert ways.most_tokens("t", -3, known) is None


@pytest.mark.parametrize("wanted", [6, None], ids=["the request's length", "auto"])
def test_a_longer_draft_gives_way_and_says_so(wanted):
    options = SpeculationOptions(num_draft_tokens=wanted)
    plan = plan_of(decide(policy_of_flags(), Traits(), options, "r"))
    most = [2]
    length = DraftLength(plan, "r", most_tokens=lambda: most[0])
    choice = length.choose(1)
    assert (choice.num_tokens, choice.reason) == (2, Reason.GAVE_WAY)
    most[0] = 64
    assert length.choose(1) is choice, "a cycle's choice is made once"
    assert length.choose(2).num_tokens == (wanted or 4)
