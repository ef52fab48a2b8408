"""Noise is Philox4x32-10, the same everywhere, strictly between 0 and 1."""

import math

import numpy as np
import pytest
import torch
from scipy import stats

from outrider import elementary, noise

ONES = 0xFFFFFFFF


@pytest.mark.parametrize(
    ("counter", "key", "words"),
    [
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        ((ONES,) * 4, (ONES, ONES), (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD)),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
    ids=["zeros", "ones", "pi"],
)
def test_philox_gives_the_known_answers_of_random123(counter, key, words):
    assert noise.philox(counter, key) == words
    tensors = noise.philox(
        tuple(torch.tensor([c]) for c in counter), tuple(torch.tensor([k]) for k in key)
    )
    assert tuple(int(t) for t in tensors) == words


def test_uniform_is_one_function_of_ints_and_of_broadcast_tensors():
    keys = [0, 1, 2**63, 2**64 - 1, 0x123456789ABCDEF0]
    key = noise.key_tensor(keys, device=torch.device("cpu"))
    together = noise.uniform(key[:, None], torch.arange(7), 100, 3, 2)
    assert together.shape == (5, 7)
    for i, k in enumerate(keys):
        for a in range(7):
            assert noise.uniform(k, a, 100, 3, 2).item() == together[i, a].item()


def test_every_argument_of_uniform_matters():
    values = [
        noise.uniform(*arguments).item()
        for arguments in [
            (5, 6, 7, 8, 0), (2**40 + 5, 6, 7, 8, 0), (5, 7, 7, 8, 0), (5, 6, 8, 8, 0),
            (5, 6, 7, 9, 0), (5, 6, 7, 8, 1), (5, 6, 7, 8, 2), (5, 6, 7, 8, 3), (5, 6, 7, 8, 4),
        ]
    ]  # fmt: skip
    assert len(set(values)) == len(values)


def test_uniform_follows_the_bits_of_the_contract():
    word0, word1, _, _ = noise.philox((9, 8, 7, 1), (3, 4))
    expected = ((word0 << 21 ^ word1 >> 11) + 0.5) * 2.0**-53
    assert noise.uniform(3 + (4 << 32), 9, 8, 7, 1).item() == expected


@pytest.mark.parametrize("word", [0, ONES])
def test_uniform_never_reaches_0_or_1(monkeypatch, word):
    monkeypatch.setattr(noise, "philox", lambda counter, key: (torch.tensor([word]),) * 4)
    value = noise.uniform(0, 0, 0, 0, 0)
    assert 0 < value.item() < 1
    assert math.isfinite(noise.gumbel(0, 0, 0, 0, 0).item())


def test_uniform_is_uniform_and_gumbel_is_gumbel():
    a = torch.arange(50_000)
    uniform = noise.uniform(11, a, 5, 0, 0).numpy()
    assert 0 < uniform.min() <= uniform.max() < 1
    assert stats.kstest(uniform, "uniform").pvalue > 1e-6
    assert stats.kstest(noise.gumbel(11, a, 6, 0, 0).numpy(), "gumbel_r").pvalue > 1e-6
    neighbours = noise.uniform(11, a, 7, 0, 0).numpy()
    assert abs(np.corrcoef(uniform, neighbours)[0, 1]) < 5 / math.sqrt(len(a))


def test_log_and_exp_are_accurate():
    x = noise.uniform(1, torch.arange(20_000), 0, 0, 0)
    x = torch.cat([x, x * 1e-15, 1 - x * 1e-12, x * 40, torch.tensor([1.0, 0.5, 1 - 2.0**-53])])
    torch.testing.assert_close(elementary.log(x), torch.log(x), rtol=3e-16, atol=0)
    y = torch.cat([-x * 20, torch.tensor([0.0, -700.0, -708.5, -1e4, -torch.inf])])
    torch.testing.assert_close(elementary.exp(y), torch.exp(y), rtol=5e-16, atol=1e-307)
    assert elementary.exp(torch.tensor([0.0], dtype=torch.float64)).item() == 1.0
