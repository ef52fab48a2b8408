"""The formula of docs/draft-length.md, on numbers that can be followed by hand."""

import pytest

from outrider.gain import accepted_of_chain, best_length, cycles_ms, rates, rows_of_passes


def test_a_token_counts_if_all_before_it_do():
    assert accepted_of_chain([0.5, 0.5, 1.0]) == [0.0, 0.5, 0.75, 1.0]
    assert accepted_of_chain([]) == [0.0]


def test_each_sequence_pays_for_the_rows_of_all_but_prompts_stay():
    assert rows_of_passes(4, 100, 2) == [104, 108, 112]


def test_a_draft_that_does_not_come_was_waited_for_all_the_same():
    assert cycles_ms([0.0, 4.0], [10.0, 20.0], 0.25) == [10.0, 4 + 0.25 * 20 + 0.75 * 10]


def test_rates_count_the_targets_own_token():
    assert rates([0.0, 2.0], [10.0, 15.0], 0.5) == pytest.approx([0.1, 2 / 15])


def test_the_best_length_is_none_but_0():
    assert best_length([2.0, 1.0, 1.5]) == (2, 0.75)
