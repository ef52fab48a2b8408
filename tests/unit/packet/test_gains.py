"""Where time was saved and spent, on receipts that can be calculated by hand."""

import pytest

from outrider.packet.finished import Finished, Groups, band, finished
from outrider.packet.gains import Pace, gain, pace, saving
from tests.unit.packet.made import control, drafted, receipt


def test_only_what_came_to_its_end_counts_in_the_order_of_arrival():
    outcomes = ("stop", "length", "cancelled", "error", "refused")
    given = [receipt(outcome=each, arrived_at_s=9.0 - i) for i, each in enumerate(outcomes)]
    assert [each.receipt.outcome for each in finished(given)] == ["length", "stop"]


def test_what_is_later_is_behind_the_first_token():
    each = drafted()
    assert (each.num_later_tokens, each.num_later_cycles) == (10, 5)
    assert (each.later_ms, each.later_verify_ms, each.per_token_ms) == (70.0, 45.0, 7.0)
    assert Finished(receipt(num_output_tokens=1)).per_token_ms is None


def test_the_control_asked_for_target_only_itself():
    groups = Groups.of([control(), drafted(), Finished(receipt())])
    assert [each.decision for each in groups.control] == ["target_only_requested"]
    assert len(groups.decided) == 2
    overridden = drafted(decision="on; a chat template difference was overridden")
    assert overridden.decision == "on"


def test_the_pace_is_that_of_later_tokens():
    assert pace([control(), control()]) == Pace(verify_ms=8.0, rest_ms=2.0)
    assert pace([control(num_output_tokens=1)]) is None


def test_net_is_what_the_control_would_have_taken_less_what_was_taken():
    found = saving([drafted(), drafted()], Pace(verify_ms=8.0, rest_ms=2.0))
    assert found.alone_ms == 200.0
    assert found.saved_ms == 2 * 5 * 8.0
    assert found.verify_ms == 2 * (45.0 - 5 * 8.0)
    assert found.draft_ms == 2 * 15.0
    assert found.scheduling_ms == 2 * (10.0 - 10 * 2.0)
    assert found.net_ms == pytest.approx(found.alone_ms - 2 * 70.0) == 60.0
    assert found.net_share == pytest.approx(0.3)


def test_drafts_that_save_no_pass_cost_all_they_take():
    wasted = drafted(num_cycles=11, num_passes_saved=0, verify_ms=40.0 + 100.0, total_ms=190.0)
    found = saving([wasted], Pace(8.0, 2.0))
    assert (found.saved_ms, found.verify_ms, found.draft_ms) == (0.0, 20.0, 15.0)
    assert found.net_ms == pytest.approx(100.0 - 140.0)


def test_the_gain_is_a_ratio_of_rates_and_its_interval_contains_it():
    alone = [control(total_ms=150.0 + shift) for shift in (-10, 0, 10, 5, -5)]
    found = gain(Groups.of([drafted() for _ in range(5)] + alone))
    assert found is not None
    assert found.value == pytest.approx(10 / 7)
    assert 1 < found.low < found.value < found.high
    assert found.verdict == "gains"


def test_a_gain_is_unsure_where_requests_differ_more_than_sides():
    mixed = [drafted(total_ms=ms) for ms in (90.0, 250.0, 100.0, 240.0)]
    alone = [control(total_ms=ms) for ms in (90.0, 250.0, 100.0, 240.0)]
    found = gain(Groups.of([*mixed, *alone]))
    assert found is not None
    assert found.verdict == "unsure"
    slow = gain(Groups.of([drafted(total_ms=400.0) for _ in range(4)] + alone))
    assert slow is not None
    assert slow.verdict == "loses"


def test_of_too_few_nothing_is_said():
    assert gain(Groups.of([drafted()] * 9 + [control()] * 2)) is None
    assert gain(Groups.of([drafted()] * 9 + [control(num_output_tokens=1)] * 9)) is None


@pytest.mark.parametrize(
    ("num_tokens", "expected"),
    [(1, "1 to 16"), (16, "1 to 16"), (17, "17 to 64"), (256, "65 to 256"), (257, "257 or more")],
)
def test_output_lengths_fall_into_bands(num_tokens, expected):
    assert band(num_tokens) == expected
