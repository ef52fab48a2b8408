"""The test of the law itself: exact where it can be, and neither blind nor nervous."""

import numpy as np
import pytest

from tests.statistical.law import ALPHA, TableLaw, chi_square_p, sequence_counts, sequence_p

pytestmark = pytest.mark.statistical


def test_sequence_probs_are_products_of_conditionals():
    law = TableLaw.random(3, seed=1)
    probs = law.sequence_probs([2, 0, 1], 3, temperature=0.5)
    assert probs.shape == (27,)
    assert probs.sum() == pytest.approx(1.0)
    expected = 1.0
    context = [0, 1]
    for token_id in (2, 0, 1):
        row = np.exp(law.logits[context[-2], context[-1]] / 0.5)
        expected *= row[token_id] / row.sum()
        context.append(token_id)
    assert probs[2 * 9 + 0 * 3 + 1] == pytest.approx(expected)


def test_counts_follow_the_order_of_the_probs():
    counts = sequence_counts(np.array([[2, 0, 1], [2, 0, 1], [0, 0, 0]]), 3)
    assert counts[19] == 2
    assert counts[0] == 1
    assert counts.sum() == 3


def test_p_values_of_the_true_law_are_not_extreme():
    # seeds 0..49, draws 2,000 each, alpha 1e-6
    law = TableLaw.random(4, seed=7)
    probs = law.sequence_probs([0, 1], 3)
    p_values = [
        chi_square_p(np.random.default_rng(s).multinomial(2000, probs), probs) for s in range(50)
    ]
    assert min(p_values) > 1e-4
    assert 0.3 < np.mean(p_values) < 0.7


def test_a_small_bias_is_seen():
    # seed 3, draws 100,000: total variation 0.02 must fail
    law = TableLaw.random(6, seed=7)
    probs = law.sequence_probs([0, 1], 3)
    biased = probs * np.random.default_rng(0).choice([0.96, 1.04], len(probs))
    biased /= biased.sum()
    codes = np.random.default_rng(3).choice(len(probs), 100_000, p=biased)
    sequences = np.stack([codes // 36, codes // 6 % 6, codes % 6], axis=1)
    assert sequence_p(law, [0, 1], sequences) < ALPHA


def test_what_cannot_occur_fails_at_once():
    assert chi_square_p(np.array([50, 50, 1]), np.array([0.5, 0.5, 0.0])) == 0.0
    assert chi_square_p(np.array([50, 50, 0]), np.array([0.5, 0.5, 0.0])) == 1.0
