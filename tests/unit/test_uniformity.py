"""Numbers of tokens are uniform where tokens follow a law, and show it where they do not."""

import numpy as np
import pytest

from outrider.uniformity import Evidence, rank_uniforms

P = np.array([0.5, 0.3, 0.15, 0.05])
Q = np.array([0.1, 0.0, 0.6, 0.3])


def numbers(law: np.ndarray, num: int, *, with_draft: bool, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    ids = rng.choice(len(P), size=num, p=law)
    drafts = np.tile(Q, (num, 1)) if with_draft else None
    return rank_uniforms(np.tile(P, (num, 1)), ids, rng.random(num), drafts)


def test_each_token_has_its_stretch_by_likelihood():
    probs = np.tile(np.array([0.2, 0.5, 0.2, 0.1]), (4, 1))
    found = rank_uniforms(probs, np.arange(4), np.full(4, 0.5))
    np.testing.assert_allclose(found, [0.6, 0.25, 0.8, 0.95])  # of equals the lowest id is first


def test_each_token_has_its_stretch_by_the_drafts_preference():
    probs, drafts = np.tile(P, (4, 1)), np.tile(Q, (4, 1))
    # q / p: 0.2, 0, 4, 6; so the order is 3, 2, 0, 1
    found = rank_uniforms(probs, np.arange(4), np.full(4, 0.5), drafts)
    np.testing.assert_allclose(found, [0.45, 0.85, 0.125, 0.025])


def test_a_row_without_a_draft_is_ordered_by_likelihood():
    probs = np.tile(P, (2, 1))
    ids, randoms = np.array([1, 3]), np.array([0.2, 0.7])
    with_zeros = rank_uniforms(probs, ids, randoms, np.zeros((2, 4)))
    np.testing.assert_array_equal(with_zeros, rank_uniforms(probs, ids, randoms))


def test_ids_without_mass_never_come_between():
    probs = np.array([[0.0, 0.6, 0.0, 0.4]])
    drafts = np.array([[0.9, 0.0, 0.1, 0.0]])
    assert rank_uniforms(probs, np.array([3]), np.array([0.5]), drafts)[0] == pytest.approx(0.8)


@pytest.mark.parametrize("with_draft", [False, True])
def test_the_right_law_gives_uniform_numbers(with_draft):
    # seed 0, draws 20,000: a cell of ten has a standard deviation of 42
    counts, _ = np.histogram(numbers(P, 20_000, with_draft=with_draft), bins=10, range=(0, 1))
    assert np.abs(counts - 2000).max() < 5 * 42


def evidence(law: np.ndarray, num: int, *, with_draft: bool = False) -> float:
    found = Evidence()
    for part in np.split(numbers(law, num, with_draft=with_draft), 20):
        found.add(part)
    assert found.num_numbers == num
    return found.log10


def test_the_right_law_leaves_no_evidence():
    # seeds 0, draws 100,000; the chance to be above at the end is below 10**-3 by Markov's
    # inequality, were the capital not renewed; with it it is of that order
    assert evidence(P, 100_000) < 4
    assert evidence(P, 100_000, with_draft=True) < 4


def test_a_pull_towards_the_draft_shows():
    # an uncorrected residual: accepted tokens, and p again where none was
    overlap = np.minimum(P, Q)
    pulled = overlap + (1 - overlap.sum()) * P
    assert evidence(pulled, 2_000, with_draft=True) > 9


def test_too_likely_tokens_show():
    sharper = P**1.3 / (P**1.3).sum()
    assert evidence(sharper, 5_000) > 9


def test_a_change_shows_after_a_long_time_without():
    found = Evidence()
    found.add(numbers(P, 50_000, with_draft=False))
    before = found.log10
    sharper = P**1.3 / (P**1.3).sum()
    found.add(numbers(sharper, 5_000, with_draft=False, seed=1))
    assert before < 4
    assert found.log10 > 9


def test_evidence_is_the_same_however_it_comes():
    one, other = Evidence(), Evidence()
    drawn = numbers(P, 400, with_draft=False)
    one.add(drawn)
    for each in drawn:
        other.add(np.array([each]))
    assert one.log10 == pytest.approx(other.log10)
    assert Evidence().log10 == 0
