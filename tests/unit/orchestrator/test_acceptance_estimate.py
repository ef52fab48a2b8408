"""Conditional acceptance by position: shared, of a sequence, and by logit margin."""

import math
import random

import pytest

from orchestrator.acceptance_estimate import PRIOR, SequenceAcceptance, SourceAcceptance
from orchestrator.margin_model import NUM_BEFORE_FIT, Logistic, MarginModel, sigmoid


def test_only_positions_that_were_reached_are_updated():
    known = SourceAcceptance()
    known.observe(num_accepted=1, num_drafted=4)
    assert known.counts == [1, 1], "the first was kept, the second rejected, no other judged"
    assert known.probs == [(PRIOR + 1) / 2, (PRIOR + 1) / 2 / 2]
    known.observe(num_accepted=2, num_drafted=2)
    assert known.counts == [2, 2], "behind a draft that was kept whole nothing was judged"


def test_unseen_positions_are_like_the_last_one_that_was_seen():
    known = SourceAcceptance()
    assert known.conditional(0) == known.conditional(9) == PRIOR
    known.observe(num_accepted=0, num_drafted=1)
    assert known.conditional(9) == known.conditional(0) == PRIOR / 2


def test_estimates_become_the_frequencies():
    rng = random.Random(1)
    truth, known = [0.9, 0.6, 0.3], SourceAcceptance()
    for _ in range(4000):
        accepted = 0
        while accepted < 3 and rng.random() < truth[accepted]:
            accepted += 1
        known.observe(accepted, 3)
    assert [known.conditional(i) for i in range(3)] == pytest.approx(truth, abs=0.25)


def test_a_sequence_is_drawn_to_its_source_until_it_has_seen_enough():
    shared = SourceAcceptance(probs=[0.25], counts=[100])
    own = SequenceAcceptance()
    assert own.conditional(0, shared) == 0.25
    own.observe(1, 1)
    assert own.conditional(0, shared) == (1 + 8 * 0.25) / (1 + 8)
    own.observe(0, 1)
    assert own.conditional(0, shared) == pytest.approx((0.95 + 8 * 0.25) / (1.95 + 8))
    for _ in range(400):
        own.observe(1, 1)
    assert own.conditional(0, shared) == pytest.approx((20 + 2) / (20 + 8), abs=0.01)
    assert own.conditional(1, shared) == 0.25


def test_a_logistic_curve_is_found_from_margins():
    rng = random.Random(2)
    curve = Logistic()
    for _ in range(6000):
        margin = rng.uniform(0, 5)
        curve.observe(margin, rng.random() < sigmoid(1.2 * margin - 2))
    for margin in (0.5, 2.0, 4.0):
        assert curve.prob(margin) == pytest.approx(sigmoid(1.2 * margin - 2), abs=0.1)


def test_a_curve_that_falls_is_not_taken():
    curve = Logistic()
    for index in range(NUM_BEFORE_FIT):
        curve.observe(float(index % 5), index % 5 == 0)
    assert not curve.is_fitted
    assert curve.slope == 0


def test_margins_of_positions_behind_a_rejection_teach_nothing():
    model = MarginModel()
    for _ in range(NUM_BEFORE_FIT):
        model.observe((3.0, 1.0, 2.0), num_accepted=1)
    assert [each.num_seen for each in model.positions] == [0, 0]
    assert len(model.positions) == 2
    assert model.prob(0, 3.0) is not None
    assert model.prob(2, 3.0) is None


def test_no_margin_overflows():
    assert sigmoid(-1e4) == 0 < sigmoid(1e4) == 1
    curve = Logistic()
    for _ in range(200):
        curve.observe(math.inf, True)
    assert 0 < curve.prob(math.inf) <= 1
