"""Processed distributions keep what transformers' processors keep, in every path and batch."""

import pytest
import torch
from transformers import (
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from outrider import distribution
from outrider.distribution import RowSampling, log_probs, process
from outrider.token_sets import pack_ids

SAMPLINGS = [
    RowSampling(),
    RowSampling(temperature=0.6),
    RowSampling(temperature=1.7, top_k=5),
    RowSampling(top_k=1),
    RowSampling(top_k=-1, top_p=0.9),
    RowSampling(top_k=200),
    RowSampling(top_k=200, top_p=0.97),
    RowSampling(top_p=0.3),
    RowSampling(top_p=0.95),
    RowSampling(top_p=0.9999),
    RowSampling(top_p=1e-6),
    RowSampling(min_p=0.1),
    RowSampling(min_p=1.0),
    RowSampling(min_p=1e-5),
    RowSampling(temperature=0.8, top_k=40, top_p=0.9, min_p=0.02),
    RowSampling(temperature=1.3, top_k=300, top_p=0.99, min_p=1e-4),
    RowSampling(top_p=0.9, banned_ids=(0, 3, 17)),
    RowSampling(top_k=10**6),
]


def transformers_log_probs(logits: torch.Tensor, row: RowSampling) -> torch.Tensor:
    scores = logits[None].clone()
    scores[0, list(row.banned_ids)] = -torch.inf
    processors = [TemperatureLogitsWarper(row.temperature)] if row.temperature != 1 else []
    processors += [TopKLogitsWarper(row.top_k)] if row.top_k > 0 else []
    processors += [TopPLogitsWarper(row.top_p)] if row.top_p < 1 else []
    processors += [MinPLogitsWarper(row.min_p)] if row.min_p > 0 else []
    for processor in processors:
        scores = processor(None, scores)
    return scores[0].log_softmax(-1)


def random_logits(num_rows: int, width: int, *, scale: float, seed: int) -> torch.Tensor:
    return torch.randn(num_rows, width, generator=torch.Generator().manual_seed(seed)) * scale


@pytest.mark.parametrize("scale", [0.5, 2.0, 6.0])
@pytest.mark.parametrize(("vocab_size", "head_size"), [(6, 3), (50, 512), (500, 16), (2048, 64)])
def test_agrees_with_transformers_row_by_row(vocab_size, head_size, scale):
    logits = random_logits(len(SAMPLINGS), vocab_size + 9, scale=scale, seed=vocab_size)
    rows = [r for r in SAMPLINGS if max(r.banned_ids, default=0) < vocab_size]
    logits = logits[: len(rows)]
    processed = process(logits, rows, vocab_size=vocab_size, head_size=head_size)
    ours = processed.log_probs()
    assert ours.shape == (len(rows), vocab_size)
    for i, row in enumerate(rows):
        theirs = transformers_log_probs(logits[i, :vocab_size], row)
        assert torch.equal(ours[i] > -torch.inf, theirs > -torch.inf), row
        torch.testing.assert_close(ours[i], theirs, rtol=1e-5, atol=2e-5)


def test_the_head_holds_the_most_likely_ids():
    logits = random_logits(len(SAMPLINGS), 2048, scale=2.0, seed=3)
    processed = process(logits, SAMPLINGS, vocab_size=2048, head_size=64)
    dense = processed.log_probs()
    values, _ = dense.sort(dim=-1, descending=True, stable=True)
    assert torch.equal(processed.head_log_probs, values[:, :64])
    inside = processed.head_log_probs > -torch.inf
    assert torch.equal(dense.gather(1, processed.head_ids)[inside], values[:, :64][inside])
    is_wide = ((dense > -torch.inf).sum(-1) > 64).nonzero()[:, 0].tolist()
    assert list(processed.full_rows) == is_wide


@pytest.mark.parametrize(("vocab_size", "head_size"), [(77, 16), (6000, 64), (2048, 512)])
def test_a_row_has_the_same_bits_in_every_batch(vocab_size, head_size):
    logits = random_logits(len(SAMPLINGS), vocab_size, scale=2.5, seed=5)
    sizes = {"vocab_size": vocab_size, "head_size": head_size}
    together = process(logits, SAMPLINGS, **sizes)
    dense = together.log_probs()
    ids, margins = distribution.greedy(logits, SAMPLINGS, vocab_size=vocab_size)
    for i, row in enumerate(SAMPLINGS):
        alone = process(logits[i : i + 1], [row], **sizes)
        assert torch.equal(alone.log_probs()[0], dense[i]), row
        assert torch.equal(alone.head_log_probs[0], together.head_log_probs[i]), row
        assert torch.equal(alone.head_ids[0], together.head_ids[i]), row
        best, margin = distribution.greedy(logits[i : i + 1], [row], vocab_size=vocab_size)
        assert (best[0], margin[0]) == (ids[i], margins[i])


def test_of_equal_logits_the_lowest_ids_are_kept():
    logits = torch.zeros(4, 64)
    rows = [
        RowSampling(top_k=3),
        RowSampling(top_p=4.5 / 64),
        RowSampling(top_p=0.99, min_p=1.0, top_k=60),
        RowSampling(top_k=3, banned_ids=(0, 2)),
    ]
    for head_size in (2, 8, 64):
        processed = process(logits, rows, vocab_size=64, head_size=head_size)
        kept = [row.nonzero()[:, 0].tolist() for row in processed.log_probs() > -torch.inf]
        assert kept == [[0, 1, 2], [0, 1, 2, 3, 4], list(range(60)), [1, 3, 4]]


def test_padded_and_banned_ids_have_no_probability():
    logits = random_logits(2, 40, scale=1.0, seed=1)
    logits[:, 33:] = 100.0
    logits[:, 4] = 90.0
    rows = [RowSampling(banned_ids=(4, 39)), RowSampling(top_k=1, banned_ids=(4,))]
    dense = log_probs(logits, rows, vocab_size=33)
    assert dense.shape == (2, 33)
    assert (dense[:, 4] == -torch.inf).all()
    torch.testing.assert_close(dense.exp().sum(-1), torch.ones(2))
    ids, _ = distribution.greedy(logits, rows, vocab_size=33)
    assert ids.tolist() == dense.argmax(-1).tolist()


@pytest.mark.parametrize("temperature", [1e-5, 1e-4])
def test_tiny_temperatures_are_greedy(temperature):
    logits = random_logits(8, 300, scale=3.0, seed=9)
    dense = log_probs(logits, [RowSampling(temperature=temperature)] * 8, vocab_size=300)
    ids, margins = distribution.greedy(logits, [RowSampling()] * 8, vocab_size=300)
    assert (margins > 0.005).all()
    assert dense.argmax(-1).tolist() == ids.tolist()
    assert dense.amax(-1).tolist() == [0.0] * 8


def test_greedy_takes_the_lowest_id_and_tells_the_lead():
    logits = torch.tensor([[1.0, 3.0, 3.0, 9.0], [5.0, 1.0, 2.5, 9.0]])
    ids, margins = distribution.greedy(logits, [RowSampling()] * 2, vocab_size=3)
    assert ids.tolist() == [1, 0]
    assert margins.tolist() == [0.0, 2.5]


@pytest.mark.parametrize(
    ("logits", "row", "vocab_size"),
    [
        (torch.zeros(1, 8), RowSampling(temperature=0.0), 8),
        (torch.zeros(1, 8), RowSampling(), 9),
        (torch.zeros(2, 8), RowSampling(), 8),
        (torch.zeros(1, 8, dtype=torch.bfloat16), RowSampling(), 8),
        (torch.zeros(1, 3), RowSampling(banned_ids=(0, 1, 2)), 3),
    ],
    ids=["temperature 0", "vocabulary too large", "rows differ", "bfloat16", "all banned"],
)
def test_refuses_what_has_no_distribution(logits, row, vocab_size):
    with pytest.raises(ValueError, match=r"."):
        process(logits, [row], vocab_size=vocab_size)


@pytest.mark.parametrize("num_allowed", [1, 5, 16, 17, 400])
@pytest.mark.parametrize(
    "row", [RowSampling(0.7), RowSampling(1.3, top_k=9), RowSampling(top_p=0.6)]
)
def test_a_mask_leaves_the_law_of_what_it_allows(row, num_allowed):
    """Where that fits the head, where it does not, and where it is all that truncation sees."""
    generator = torch.Generator().manual_seed(num_allowed)
    logits = torch.randn(3, 500, generator=generator)
    allowed = torch.randperm(500, generator=generator)[:num_allowed].sort().values
    masked = row.allowing(pack_ids(allowed.tolist(), 500))
    found = process(logits, [masked] * 3, vocab_size=500, head_size=16).log_probs()
    alone = process(
        logits[:, allowed].contiguous(), [row] * 3, vocab_size=num_allowed, head_size=16
    )
    expected = torch.full_like(found, -torch.inf)
    expected[:, allowed] = alone.log_probs()
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_a_row_that_a_constraint_leaves_nothing_is_marked_and_runs():
    row = RowSampling().allowing(pack_ids([], 8))
    assert row.is_dead_end
    assert RowSampling().allowing(pack_ids([3], 8)).allowing(pack_ids([4], 8)).is_dead_end
    rows = [row, RowSampling().allowing(pack_ids([3], 8))]
    found = process(torch.zeros(2, 8), rows, vocab_size=8, head_size=4).log_probs()
    assert (found[0] > -torch.inf).all()
    assert (found[1] > -torch.inf).nonzero()[:, 0].tolist() == [3]
