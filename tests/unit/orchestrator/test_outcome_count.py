"""As many outcomes are prepared as were ready within what a verification takes."""

import pytest

from orchestrator.estimates import Lane
from orchestrator.outcome_count import EXPLORE, MOST, num_outcomes

VERIFY_MS = 20.0


def lane(**ahead_ms: float) -> Lane:
    """A verification takes 20 ms whatever it verifies; so many outcomes took so long."""
    made = Lane()
    made.verify.by_rows.observe(1, VERIFY_MS)
    for name, ms in ahead_ms.items():
        made.draft.ahead.observe(int(name.removeprefix("n")), ms)
    return made


@pytest.mark.parametrize(
    ("limit", "known", "expected"),
    [
        pytest.param(3, lane(n1=100.0), 3, id="as told, whatever it takes"),
        pytest.param("auto", lane(), 1, id="nothing is known"),
        pytest.param("auto", lane(n1=5.0), 2, id="twice as many as were seen"),
        pytest.param("auto", lane(n1=30.0), 1, id="one is prepared even if it is late"),
        pytest.param("auto", lane(n1=5.0, n2=8.0), 4, id="by the last slope: 3 ms an outcome"),
        pytest.param("auto", lane(n1=5.0, n2=15.0), 2, id="by the last slope: 10 ms an outcome"),
        pytest.param("auto", lane(n1=5.0, n4=8.0, n8=19.0), MOST, id="all fit"),
        pytest.param("auto", lane(n1=5.0, n4=8.0, n8=24.0), 7, id="between two that were seen"),
    ],
)
def test_table(limit, known, expected):
    assert num_outcomes(limit, known, 4, EXPLORE) == expected


def test_now_and_then_one_more_is_tried_but_never_out_of_reach():
    late, easy = lane(n1=5.0, n2=30.0), lane(n1=5.0)
    assert num_outcomes("auto", late, 4, EXPLORE / 2) == 2
    assert num_outcomes("auto", late, 4, EXPLORE) == 1
    assert num_outcomes("auto", easy, 4, EXPLORE / 2) == 2
    assert num_outcomes(3, late, 4, EXPLORE / 2) == 3


def test_a_drafter_that_has_become_fast_is_found_out():
    known = lane(n1=5.0, n2=100.0)
    for _ in range(60):  # what exploring sees
        known.draft.ahead.observe(2, 8.0)
    assert num_outcomes("auto", known, 4, EXPLORE) >= 2
