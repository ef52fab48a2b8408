"""Order among equals is by id, however wide the row."""

import pytest
import torch

from outrider import ranking


@pytest.fixture(autouse=True, params=["native", "torch"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "torch":
        monkeypatch.setattr(ranking, "shared_kernels", lambda: None)
    elif ranking.shared_kernels() is None:
        pytest.skip("no C compiler here")


def oracle(row: list[float], count: int) -> list[int]:
    return sorted(range(len(row)), key=lambda i: (-row[i], i))[:count]


@pytest.mark.parametrize(
    ("width", "count"),
    [(1, 1), (32, 3), (32, 64), (480, 10), (480, 15), (1024, 8), (4096, 100), (4096, 300)],
)
@pytest.mark.parametrize("levels", [1, 3, 40, 10**6])
def test_top_agrees_with_a_sort_by_value_then_id(width, count, levels):
    generator = torch.Generator().manual_seed(width * levels + count)
    rows = torch.randint(levels, (4, width), generator=generator).float()
    rows[1, ::2] = -torch.inf
    rows[2, 5:] = -torch.inf
    values, ids = ranking.top(rows, count)
    for i, row in enumerate(rows.tolist()):
        expected = oracle(row, count)
        assert ids[i].tolist() == expected
        assert values[i].tolist() == [row[e] for e in expected]


def test_rows_may_lie_apart():
    rows = torch.randn(5, 4128, generator=torch.Generator().manual_seed(1))
    for part in (rows[:, :4096], rows[::2, 16:4112], rows.t().contiguous().t()):
        values, ids = ranking.top(part, 9)
        assert ids.tolist() == [oracle(row, 9) for row in part.tolist()]
        assert torch.equal(values, part.gather(1, ids))


def test_top_of_no_rows_is_empty():
    values, ids = ranking.top(torch.empty(0, 4096), 8)
    assert values.shape == ids.shape == (0, 8)


@pytest.mark.parametrize("width", [1, 2, 7, 16, 32, 4096])
@pytest.mark.parametrize("levels", [1, 4, 10**6])
def test_first_and_second_agree_with_a_sort(width, levels):
    generator = torch.Generator().manual_seed(width + levels)
    rows = torch.randint(levels, (5, width), generator=generator).float()
    before = rows.clone()
    ids, leads = ranking.first_and_second(rows)
    assert torch.equal(rows, before)
    for i, row in enumerate(rows.tolist()):
        first, *rest = oracle(row, 2)
        assert ids[i].item() == first
        assert leads[i].item() == (row[first] - row[rest[0]] if rest else float("inf"))
