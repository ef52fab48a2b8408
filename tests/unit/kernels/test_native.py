"""The kernels build where there is a compiler, and say why where there is none."""

from pathlib import Path

import pytest
import torch

from outrider.engine.linear import replace_linears
from outrider.kernels import KernelsUnavailable, load_kernels


def test_switched_off_by_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OUTRIDER_KERNELS", "torch")
    with pytest.raises(KernelsUnavailable, match="OUTRIDER_KERNELS=torch"):
        load_kernels()


def test_no_compiler_is_no_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(KernelsUnavailable, match="no C compiler"):
        load_kernels()


def test_a_failing_compiler_is_no_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("CC", "false")
    with pytest.raises(KernelsUnavailable, match="failed"):
        load_kernels()
    assert list((tmp_path / "outrider").iterdir()) == []


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(("k", "n"), [(1, 1), (7, 5), (48, 32), (50, 13), (96, 64)])
def test_linear_equals_torch_and_rows_do_not_see_each_other(
    dtype: torch.dtype, k: int, n: int
) -> None:
    try:
        kernels = load_kernels(threads=2)
    except KernelsUnavailable:
        pytest.skip("no C compiler here")
    torch.manual_seed(0)
    linear = torch.nn.Linear(k, n).to(dtype).requires_grad_(False)
    x = torch.randn(3, 11, k).to(dtype)
    expected = torch.nn.functional.linear(x.float(), linear.weight.float(), linear.bias.float())
    replace_linears(torch.nn.Sequential(linear), kernels, heads=[linear])
    got = linear(x)
    assert got.dtype is torch.float32
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
    rows = x.view(33, k)
    for count in range(1, 34):
        assert torch.equal(linear(rows[:count]), got.view(33, n)[:count])
