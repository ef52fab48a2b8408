"""What goes into a pass: a case table."""

from dataclasses import dataclass

import pytest

from outrider.engine.scheduler import choose
from outrider.engine.settings import EngineSettings

SETTINGS = EngineSettings(max_tokens_per_pass=100, prefill_chunk_tokens=20, max_decode_tokens=8)


@dataclass(frozen=True)
class Fake:
    rows_left: int
    order: tuple[int, int]
    num_together: int = 0
    """The last rows, which go into one pass or into none."""

    def fitting(self, count: int) -> int:
        if count >= self.rows_left:
            return self.rows_left
        return min(count, self.rows_left - self.num_together)


@pytest.mark.parametrize(
    ("rows_left", "expected"),
    [
        ([], []),
        ([3, 1], [3, 1]),
        ([300], [100]),  # a prompt alone takes the whole budget
        ([300, 5], [(1, 5), (0, 20)]),  # beside a stream it gets a chunk
        ([60, 60], [60, 40]),
        ([8] * 20, [8] * 12 + [4]),  # the budget is never exceeded
        ([8] * 20 + [50], [8] * 10 + [(20, 20)]),  # a prompt moves even among many streams
    ],
)
def test_choose(rows_left: list[int], expected: list) -> None:
    fakes = [Fake(rows, (0, n)) for n, rows in enumerate(rows_left)]
    chosen = [(fake.order[1], rows) for fake, rows in choose(fakes, SETTINGS)]
    assert chosen == [x if isinstance(x, tuple) else (n, x) for n, x in enumerate(expected)]


def test_priority_goes_before_arrival() -> None:
    fakes = [Fake(60, (1, 0)), Fake(60, (0, 1))]
    assert [(f.order, rows) for f, rows in choose(fakes, SETTINGS)] == [((0, 1), 60), ((1, 0), 40)]


def test_rows_that_belong_together_wait_for_a_pass_with_room() -> None:
    streams = [Fake(8, (0, n), num_together=7) for n in range(13)]
    chosen = [(fake.order[1], rows) for fake, rows in choose(streams, SETTINGS)]
    # Twelve whole ones, and of the thirteenth the one row before its tree.
    assert chosen == [*((n, 8) for n in range(12)), (12, 1)]
    trees = [Fake(8, (0, n), num_together=8) for n in range(13)]
    assert len(choose(trees, SETTINGS)) == 12
    assert [rows for _, rows in choose([*trees[:13], Fake(3, (0, 13))], SETTINGS)] == [8] * 12 + [3]
    # However large, a tree is no prompt: it goes before one that came earlier.
    prompt, tree = Fake(500, (0, 0)), Fake(40, (0, 1), num_together=39)
    assert choose([prompt, tree], SETTINGS) == [(tree, 40), (prompt, 20)]
