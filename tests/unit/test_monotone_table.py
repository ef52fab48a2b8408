"""Cost tables: averages by count, never decreasing, lines in between."""

import random

import pytest

from outrider.monotone_table import MonotoneTable, bucket_of, non_decreasing


def table(**samples_by_count: float) -> MonotoneTable:
    made = MonotoneTable()
    for name, value in samples_by_count.items():
        made.observe(int(name.removeprefix("at")), value)
    return made


def test_an_empty_table_is_0_and_one_sample_holds_everywhere():
    assert MonotoneTable()(7) == 0
    assert [table(at4=3.0)(count) for count in (0, 4, 400)] == [3, 3, 3]


def test_between_samples_a_line_left_a_constant_right_the_last_slope():
    made = table(at2=10.0, at4=20.0, at8=24.0)
    assert [made(count) for count in (0, 2, 3, 4, 6, 8, 12)] == [10, 10, 15, 20, 22, 24, 28]


def test_samples_that_decrease_are_pooled_by_weight():
    made = MonotoneTable()
    for value in (12.0, 12.0, 12.0):
        made.observe(1, value)
    made.observe(5, 8.0)
    made.observe(9, 30.0)
    assert [made(count) for count in (1, 5, 9)] == [11, 11, 30]


@pytest.mark.parametrize("seed", range(20))
def test_pooling_is_the_nearest_non_decreasing_fit(seed):
    """No neighbour on a grid that is non-decreasing lies nearer."""
    rng = random.Random(seed)
    samples = [(float(rng.randrange(10)), rng.randrange(1, 5)) for _ in range(6)]
    fitted = non_decreasing(samples)

    def distance(values: list[float]) -> float:
        return sum(w * (v - s) ** 2 for v, (s, w) in zip(values, samples, strict=True))

    assert fitted == sorted(fitted)
    for _ in range(500):
        other = sorted(value + rng.gauss(0, 0.5) for value in fitted)
        assert distance(other) >= distance(fitted) - 1e-9


def test_a_hiccup_counts_for_little_and_a_lasting_change_gets_through():
    made = MonotoneTable(max_jump=4.0)
    for _ in range(50):
        made.observe(3, 10.0)
    made.observe(3, 5000.0)
    assert made(3) == pytest.approx(13.0)
    for _ in range(60):
        made.observe(3, 100.0)
    assert made(3) == pytest.approx(100.0, rel=0.05)


def test_after_a_refresh_new_samples_count_for_more():
    made = MonotoneTable()
    for _ in range(100):
        made.observe(4, 50.0)
    made.refresh()
    for _ in range(4):
        made.observe(4, 10.0)
    assert made(4) == pytest.approx(30.0)


def test_from_the_origin_one_sample_makes_a_line():
    made = MonotoneTable(from_origin=True)
    made.observe(4, 2.0)
    assert [made(count) for count in (0, 2, 4, 8)] == [0, 1, 2, 4]


def test_buckets_are_exact_where_small_and_near_where_large():
    assert [bucket_of(count) for count in range(17)] == list(range(17))
    assert len({bucket_of(count) for count in range(1, 4097)}) < 90
    assert all(abs(bucket_of(count) - count) <= count / 16 for count in range(1, 4097))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("from_origin", [False, True])
def test_a_table_that_is_asked_between_samples_says_what_one_says_that_is_not(seed, from_origin):
    draw = random.Random(seed)
    asked, silent = MonotoneTable(4.0, from_origin), MonotoneTable(4.0, from_origin)
    for _ in range(300):
        count = draw.choice((0, 1, 2, 3, 5, 9, 40, 41, 300))
        value = count + draw.random() * draw.choice((0.1, 5.0, 100.0))
        asked.observe(count, value)
        silent.observe(count, value)
        asked(count)
    counts = range(400)
    assert asked.values(counts) == silent.values(counts)
