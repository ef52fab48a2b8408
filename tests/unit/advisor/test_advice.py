"""Curves and advice from cycles that can be calculated by hand."""

import pytest

from outrider.advisor.advice import (
    Advice,
    Check,
    Prediction,
    acceptances,
    best_by_load,
    check_of,
    predictions,
    times,
)
from outrider.advisor.curves import acceptance, cycle_times, decoding, expected_accepted, pass_times
from outrider.advisor.runs import Answer, Run, Setting
from outrider.v1 import generation_pb2 as pb

ALONE = Setting(0.0, 1)


def cycle(num_drafted: int = 0, num_accepted: int = 0, **changed: object) -> pb.CycleCost:
    """A pass takes 10 ms and 1 ms a row, the way there and back 2 ms, a draft 3 ms."""
    rows = 1 + num_drafted
    values: dict[str, object] = {
        "num_draft_tokens": num_drafted,
        "num_accepted_draft_tokens": num_accepted,
        "draft_wait_ms": 3.0 if num_drafted else 0.0,
        "draft_compute_ms": 3.0 if num_drafted else 0.0,
        "compute_ms": 10.0 + rows,
        "round_trip_ms": 12.0 + rows,
        "num_passes": 1,
        "num_rows": rows,
        "rows_in_pass": rows,
    }
    return pb.CycleCost(**(values | changed))  # type: ignore[arg-type]


def run(setting: Setting, *cycles: pb.CycleCost, rate: float = 50.0) -> Run:
    """One answer: a prompt, these cycles, and a last one that counts for nothing."""
    prompt, last = cycle(compute_ms=1e4), cycle(9, 9, compute_ms=1e4)
    return Run(setting, (Answer((1, 2), (prompt, *cycles, last), 100, 100 / rate),))


def test_neither_prompts_nor_ends_are_decoding():
    (answer,) = run(ALONE, cycle(), cycle()).answers
    assert [each.compute_ms for each in decoding([answer])] == [11.0, 11.0]
    assert decoding([Answer((1,), (cycle(),), 0, 0.0)]) == []


def test_positions_are_reached_as_far_as_all_before_them_were_kept():
    found = acceptance([cycle(3, 0), cycle(3, 2), cycle(2, 2), cycle()], 3)
    assert found.reached == (3, 2, 1)  # the short draft has no third position
    assert found.kept == (2, 2, 0)
    assert found.arrival == 0.75
    assert found.mean_acceptance_length == pytest.approx(1 + 4 / 3)
    assert found.by_position == pytest.approx([2 / 3, 2 / 3, 0.0])


def test_chains_of_all_lengths_tell_of_their_common_positions():
    short = acceptance([cycle(1, 1)] * 3 + [cycle(1, 0)], 1)
    long = acceptance([cycle(2, 2)] * 2 + [cycle(2, 1)] * 2, 2)
    expected = expected_accepted({1: short, 2: long})
    first, second = 7 / 8, 2 / 4
    assert expected == pytest.approx({1: first, 2: first + first * second})


def test_trees_tell_each_of_their_own_length():
    few = acceptance([cycle(3, 1, is_tree=True)], 3)
    many = acceptance([cycle(7, 2, is_tree=True)], 7)
    assert expected_accepted({3: few, 7: many}) == {3: 1.0, 7: 2.0}


def test_a_position_that_was_never_reached_promises_nothing():
    assert expected_accepted({2: acceptance([cycle(2, 0)], 2)}) == {2: 0.0}


def test_times_are_of_cycles_with_a_draft_and_waits_of_all():
    found = cycle_times([cycle(3, 1), cycle(draft_wait_ms=1.0)])
    assert (found.pass_ms, found.beside_ms) == (14.0, 2.0)
    assert (found.wait_ms, found.compute_ms) == (2.0, 3.0)
    with pytest.raises(ValueError, match="too short"):
        cycle_times([])


def test_passes_by_rows_are_medians():
    table = pass_times([run(ALONE, cycle(), cycle(), cycle(compute_ms=900.0), cycle(3))])
    assert (table(1), table(4)) == (11.0, 14.0)
    assert table(2) == pytest.approx(12.0), "a line in between"


def test_the_prediction_is_the_formula_of_the_draft_length_page():
    drafted = Setting(0.0, 1, "ngram", 3)
    runs = [
        run(ALONE, cycle()),
        run(drafted, cycle(3, 3), cycle(3, 1), cycle(draft_wait_ms=3.0), cycle(draft_wait_ms=3.0)),
    ]
    (found,) = predictions(acceptances(runs), times(runs))
    tokens = 1 + (1 / 2) + (1 / 2)  # a_1 = 1, a_2 = a_3 given those before: 1/2, 1
    assert (found.accepted, found.arrival) == (pytest.approx(tokens), 0.5)
    assert found.cycle_ms == pytest.approx(3 + 0.5 * 16 + 0.5 * 13)
    assert found.tokens_per_s == pytest.approx(1e3 * (1 + 0.5 * tokens) / found.cycle_ms)
    assert found.gain == pytest.approx(found.tokens_per_s / (1e3 / 13))


def prediction(gain: float, num_streams: int = 1, length: int = 3) -> Prediction:
    return Prediction(Setting(0.0, num_streams, "ngram", length), 1.0, 1.0, 10.0, 100.0, gain)


def test_the_best_is_chosen_for_each_load():
    offered = [prediction(1.1), prediction(1.2, length=7), prediction(0.8, 4), prediction(0.7, 4)]
    assert best_by_load(offered) == [offered[1], offered[2]]


@pytest.mark.parametrize(
    ("predicted", "gains", "pays"),
    [
        (1.2, (1.1, 1.2, 1.1), True),
        (1.2, (1.0, 1.02, 1.01), False),  # gains next to nothing
        (1.2, (0.9, 1.2, 1.3), False),  # unsure
        (1.02, None, False),  # not promising, so not tried
        (1.2, None, False),
    ],
)
def test_a_setting_pays_where_it_was_predicted_and_measured(predicted, gains, pays):
    best = prediction(predicted)
    check = gains and Check(best.setting, 50.0, 40.0, gains, 6, 0)
    assert Advice(best, check).pays is pays


def test_a_check_compares_runs_of_one_round():
    rounds = [(run(ALONE, rate=60.0), run(ALONE, rate=50.0)), (run(ALONE, rate=30.0),) * 2]
    found = check_of(rounds)
    assert found.gains == pytest.approx((1.2, 1.0))
    assert (found.gain, found.num_differing) == (pytest.approx(1.1), 0)
    other = Run(ALONE, (Answer((1, 3), (), 100, 2.0),))
    assert check_of([(rounds[0][0], other)]).num_differing == 1
