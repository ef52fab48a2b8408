"""The ranked outcomes of a verification are the likeliest of all that there are."""

import itertools
import random

import pytest

from drafter_svc.outcomes import Calibration, Outcome, rank
from outrider.sampling import Mode

NUM_IDS = 4


def brute_force(pending, places):
    """Let the target say every possible text, each token by its share, and compare."""
    found = {}
    for said in itertools.product(range(NUM_IDS), repeat=len(places)):
        probability = 1.0
        for place, token_id in zip(places, said, strict=True):
            probability *= dict(place)[token_id]
        num = next((i for i, d in enumerate(pending) if said[i] != d), len(pending))
        outcome = num, said[num]
        found[outcome] = found.get(outcome, 0.0) + probability
    return found


@pytest.mark.parametrize("seed", range(20))
def test_probabilities_are_those_of_enumeration(seed):
    rng = random.Random(seed)
    pending = [rng.randrange(NUM_IDS) for _ in range(rng.randint(0, 4))]
    places = []
    for _ in range(len(pending) + 1):
        shares = [rng.random() for _ in range(NUM_IDS)]
        places.append([(i, share / sum(shares)) for i, share in enumerate(shares)])
    expected = brute_force(pending, places)
    for num in (1, 3, 1000):
        ranked = rank(pending, places, num)
        best = sorted(expected.values(), reverse=True)[:num]
        assert [each.probability for each in ranked] == pytest.approx(best)
        for each in ranked:
            assert each.probability == pytest.approx(expected[each.num_accepted, each.token_id])
    assert sum(each.probability for each in ranked) == pytest.approx(1)
    assert len({each.path(pending) for each in ranked}) == len(ranked) == len(expected)


@pytest.mark.parametrize(
    ("pending", "places", "expected"),
    [
        pytest.param((), [[(7, 0.6), (8, 0.4)]], [(0, 7, 0.6), (0, 8, 0.4)], id="nothing pending"),
        pytest.param(
            (7,),
            [[(7, 1.0)], [(8, 0.5), (9, 0.3)]],
            [(1, 8, 0.5), (1, 9, 0.3)],
            id="never rejected",
        ),
        pytest.param(
            (7,),
            [[(8, 0.5)], [(9, 1.0)]],
            [(0, 8, 0.5)],
            id="a token that is not listed is never accepted",
        ),
        pytest.param(
            (5, 5),
            [[(5, 0.5), (6, 0.5)], [(5, 0.5), (6, 0.5)], [(6, 1.0)]],
            [(0, 6, 0.5), (2, 6, 0.25), (1, 6, 0.25)],
            id="of equal ones the longer first",
        ),
    ],
)
def test_table(pending, places, expected):
    ranked = rank(pending, places, 8)
    assert [each for each in ranked if each.probability] == [Outcome(*each) for each in expected]


def test_places_must_fit_the_draft():
    with pytest.raises(ValueError, match="2 places for 2 pending"):
        rank((1, 2), [[(1, 1.0)], [(1, 1.0)]], 1)


@pytest.mark.parametrize("shift", [-2.0, 0.0, 3.0])
def test_a_calibration_learns_how_often_tokens_are_kept(shift):
    """Acceptances drawn by a shift are found out, from a start without one."""
    rng, truth, learned = random.Random(1), Calibration(shift), Calibration()
    mean = 0.0
    for step in range(4000):
        shares = [rng.random() for _ in range(4)]
        kept = [rng.random() < truth.acceptance(share) for share in shares]
        learned.learn(shares, next((i for i, each in enumerate(kept) if not each), 4))
        mean += max(step - 1000, 0) and learned.shift / 2999
    assert mean == pytest.approx(shift, abs=0.25)


@pytest.mark.parametrize("mode", list(Mode))
def test_acceptance_grows_with_the_share_and_is_a_probability(mode):
    accepted = [Calibration.of(mode).acceptance(share / 100) for share in range(101)]
    assert accepted == sorted(accepted)
    assert accepted[0] > 0
    assert accepted[-1] < 1
    assert (accepted[50] > 0.5) == (mode is Mode.RATIO)


def test_a_shift_moves_outcomes_between_long_and_short_acceptance():
    pending, place = (5, 5), [(5, 0.5), (6, 0.5)]
    lengths = [
        rank(pending, [place] * 3, 1, acceptance=each.acceptance, rightness=each.acceptance)[0]
        for each in (Calibration(-2.0), Calibration(2.0))
    ]
    assert [each.num_accepted for each in lengths] == [0, 2]


def test_a_path_is_what_is_committed():
    assert Outcome(2, 9, 0.5).path((5, 6, 7)) == (5, 6, 9)
    assert Outcome(0, 9, 0.5).path((5, 6, 7)) == (9,)
