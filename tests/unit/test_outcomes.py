"""The ranked outcomes of a verification are the likeliest of all that there are."""

import itertools
import random

import pytest

from drafter_svc.outcomes import MIN_ACCEPTANCE, Outcome, acceptance_in, rank
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


@pytest.mark.parametrize("mode", list(Mode))
def test_acceptance_grows_with_the_share_and_is_a_probability(mode):
    accepted = [acceptance_in(mode)(share / 100) for share in range(101)]
    assert accepted == sorted(accepted)
    assert (accepted[0], accepted[-1]) == (MIN_ACCEPTANCE, 1.0)
    if mode is Mode.RATIO:
        assert accepted[25] == pytest.approx(0.5)


def test_a_path_is_what_is_committed():
    assert Outcome(2, 9, 0.5).path((5, 6, 7)) == (5, 6, 9)
    assert Outcome(0, 9, 0.5).path((5, 6, 7)) == (9,)
