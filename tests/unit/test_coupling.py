"""The coupled rule against a plain Python reading of it, on small vocabularies."""

import math

import pytest
import torch
from scipy import stats

from outrider import coupling, noise
from outrider.distribution import RowSampling, process, total_mass


def coupled_oracle(log_probs: list[float], key: int, position: int, head_size: int) -> int:
    """Contract 15, word by word, in float64."""

    def gumbel(token_id: int) -> float:
        uniform = noise.uniform(key, token_id, position, 0, 0).item()
        return -math.log(-math.log(uniform))

    order = sorted(range(len(log_probs)), key=lambda i: (-log_probs[i], i))
    head, tail = order[:head_size], order[head_size:]
    tail_mass = sum(math.exp(log_probs[i]) for i in tail)
    branch = tail if noise.uniform(key, 0, position, 0, 4).item() < tail_mass else head
    return min(branch, key=lambda i: (-(log_probs[i] + gumbel(i)), i))


@pytest.mark.parametrize(("vocab_size", "head_size"), [(6, 3), (6, 512), (40, 8), (5, 1)])
def test_agrees_with_brute_force(vocab_size, head_size):
    num_rows = 60
    generator = torch.Generator().manual_seed(vocab_size)
    logits = torch.randn(num_rows, vocab_size, generator=generator) * 1.5
    logits[::3, 1] = -torch.inf
    dense = logits.log_softmax(-1)
    keys = [2**63 + 977 * i for i in range(num_rows)]
    positions = [3 * i for i in range(num_rows)]
    ids, margins = coupling.coupled(dense, keys, positions, head_size=head_size)
    expected = [
        coupled_oracle(row, key, position, head_size)
        for row, key, position in zip(dense.double().tolist(), keys, positions, strict=True)
    ]
    assert ids.tolist() == expected
    assert (margins > 0).all()


@pytest.mark.parametrize(
    "row",
    [
        RowSampling(),
        RowSampling(top_p=0.9),
        RowSampling(top_k=700),
        RowSampling(top_k=20, min_p=0.1),
    ],
)
def test_drawing_from_a_processed_and_from_a_dense_row_is_the_same(row):
    logits = torch.randn(40, 4096, generator=torch.Generator().manual_seed(2)).bfloat16().float()
    processed = process(logits, [row] * 40, vocab_size=4096, head_size=64)
    keys, positions = list(range(40)), list(range(100, 140))
    ids, margins = coupling.draw(processed, keys, positions)
    from_dense = coupling.coupled(processed.log_probs(), keys, positions, head_size=64)
    assert torch.equal(ids, from_dense[0])
    assert torch.equal(margins, from_dense[1])


def test_a_row_has_the_same_bits_in_every_batch():
    generator = torch.Generator().manual_seed(8)
    logits = torch.randn(30, 1000, generator=generator) * torch.linspace(0.1, 6, 30)[:, None]
    rows = [RowSampling(top_p=0.9), RowSampling(), RowSampling(top_k=50)] * 10
    keys, positions = [7**i for i in range(30)], list(range(30))
    sizes = {"vocab_size": 1000, "head_size": 32}
    ids, margins = coupling.draw(process(logits, rows, **sizes), keys, positions)
    for i in range(30):
        alone = process(logits[i : i + 1], rows[i : i + 1], **sizes)
        one_id, one_margin = coupling.draw(alone, keys[i : i + 1], positions[i : i + 1])
        assert (one_id[0], one_margin[0]) == (ids[i], margins[i])


def test_equal_distributions_of_drafter_and_target_always_agree():
    logits = torch.randn(50, 200, generator=torch.Generator().manual_seed(1))
    shifted = logits + 5.0  # another model with the same distribution
    draws = [
        coupling.coupled(x.log_softmax(-1), [5] * 50, list(range(50)), head_size=16)[0]
        for x in (logits, shifted)
    ]
    assert torch.equal(draws[0], draws[1])


@pytest.mark.parametrize("head_size", [1, 3, 6])
def test_tail_is_taken_as_often_as_it_weighs_and_each_branch_keeps_its_law(head_size):
    # seed 1, draws 40,000, alpha 1e-6
    num_draws = 40_000
    probs = torch.tensor([0.05, 0.4, 0.1, 0.25, 0.15, 0.05])
    dense = probs.log().expand(num_draws, -1)
    ids, _ = coupling.coupled(dense, [1] * num_draws, list(range(num_draws)), head_size=head_size)
    counts = torch.bincount(ids, minlength=6).double()
    order = sorted(range(6), key=lambda i: (-probs[i].item(), i))
    head, tail = order[:head_size], order[head_size:]
    if tail:
        in_tail = int(counts[tail].sum())
        tau = probs[tail].sum().item()
        assert stats.binomtest(in_tail, num_draws, tau).pvalue > 1e-6
    for part in (head, tail, order):
        if len(part) > 1:
            expected = probs[part].double() / probs[part].double().sum() * counts[part].sum()
            assert stats.chisquare(counts[part], expected).pvalue > 1e-6


def test_a_support_inside_the_head_has_no_tail_mass():
    dense = torch.full((300, 6), -torch.inf)
    dense[:, [1, 4]] = math.log(0.5)
    for head_size in (2, 3):
        split = coupling.split(dense, head_size=head_size)
        assert split.full_rows == ()
        ids, _ = coupling.draw(split, [9] * 300, list(range(300)))
        assert set(ids.tolist()) == {1, 4}


def test_a_single_id_wins_by_infinity():
    dense = torch.full((1, 6), -torch.inf)
    dense[0, 2] = 0.0
    ids, margins = coupling.coupled(dense, [1], [1])
    assert ids.tolist() == [2]
    assert margins.tolist() == [math.inf]


def test_equal_scores_go_to_the_lowest_id(monkeypatch):
    monkeypatch.setattr(noise, "uniform", lambda key, a, *rest: (key + a) * 0.0 + 0.5)
    monkeypatch.setattr(noise, "gumbel", lambda key, a, *rest: ((key + a) * 0.0).double())
    ids, margins = coupling.coupled(torch.full((1, 8), -math.log(8)), [1], [1], head_size=3)
    assert ids.tolist() == [3]  # the tail weighs 5/8, its lowest id is 3
    assert margins.tolist() == [0.0]


def test_masses_add_up_to_one():
    dense = torch.randn(5, 4096, generator=torch.Generator().manual_seed(4)).log_softmax(-1)
    one = torch.ones(5, dtype=torch.float64)
    torch.testing.assert_close(total_mass(dense), one, rtol=0, atol=2e-6)
