"""Draft tokens are drawn by the target's rule and travel with what they were drawn from."""

import numpy as np
import pytest
import torch

from outrider import acceptance, noise, wire
from outrider.distribution import Bias, Penalties, RowSampling
from outrider.proposal import Place, propose
from outrider.sampling import Mode
from outrider.token_sets import pack_ids

KEYS, POSITIONS = [11, 12, 13, 14] * 50, list(range(200))


def proposals(logits: torch.Tensor, row: RowSampling, mode: Mode, **options):
    count = len(logits)
    places = [Place(key, position) for key, position in zip(KEYS, POSITIONS, strict=True)]
    return propose(
        logits, [row] * count, places[:count], mode=mode, vocab_size=90, head_size=16, **options
    )


@pytest.mark.parametrize("mode", [Mode.GREEDY, Mode.COUPLED])
@pytest.mark.parametrize("row", [RowSampling(), RowSampling(top_p=0.7, banned_ids=(2,))])
def test_the_drafter_draws_what_a_target_with_its_logits_draws(mode, row):
    logits = torch.randn(200, 100, generator=torch.Generator().manual_seed(3))
    drafted = proposals(logits, row, mode, num_listed=8)
    ids, _ = acceptance.select(
        logits, [row] * 200, [mode] * 200, KEYS, POSITIONS, vocab_size=90, head_size=16
    )
    assert [p.token_id for p in drafted] == ids.tolist()


@pytest.mark.parametrize("mode", [Mode.GREEDY, Mode.COUPLED])
def test_the_drawn_id_is_always_listed(mode):
    logits = torch.randn(200, 100, generator=torch.Generator().manual_seed(4)) * 0.5
    drafted = proposals(logits, RowSampling(), mode, num_listed=4)
    listed = [wire.unpack(*p.distribution)[0].tolist() for p in drafted]
    assert all(p.token_id in ids for p, ids in zip(drafted, listed, strict=True))
    assert all(len(ids) == 4 for ids in listed)
    best = logits[:, :90].topk(2)
    assert [ids[0] for ids in listed] == best.indices[:, 0].tolist()
    margins = (best.values[:, 0] - best.values[:, 1]).tolist()
    assert [p.logit_margin for p in drafted] == margins


def test_counts_follow_the_processed_distribution():
    logits = torch.full((1, 100), -20.0)
    logits[0, [5, 7, 9]] = torch.tensor([0.5, 0.25, 0.25]).log()
    (drafted,) = proposals(logits, RowSampling(top_k=3), Mode.COUPLED)
    ids, counts = wire.unpack(*drafted.distribution)
    assert ids.tolist() == [5, 7, 9]
    assert counts.tolist() == [32768, 16384, 16384]


def test_nothing_is_listed_where_nothing_is_asked_for():
    logits = torch.randn(2, 100, generator=torch.Generator().manual_seed(5))
    for mode in (Mode.GREEDY, Mode.COUPLED):
        drafted = proposals(logits, RowSampling(), mode, num_listed=0)
        assert [p.distribution for p in drafted] == [None, None]


@pytest.mark.parametrize("num_listed", [1, 4, 32])
def test_ratio_draws_from_exactly_the_counts_that_travel(num_listed):
    logits = torch.randn(200, 100, generator=torch.Generator().manual_seed(6))
    row = RowSampling(temperature=0.8, top_k=16)
    drafted = proposals(logits, row, Mode.RATIO, num_listed=num_listed)
    for proposal, key, position in zip(drafted, KEYS, POSITIONS, strict=True):
        ids, counts = wire.unpack(*proposal.distribution)
        assert len(ids) == min(num_listed, 16)
        uniform = float(noise.uniform(key, 0, position, 0, noise.Stream.PROPOSAL))
        below = counts.cumsum() <= uniform * wire.TOTAL_COUNT
        assert proposal.token_id == ids[below.sum()]
    assert num_listed == 1 or len({p.token_id for p in drafted}) > 20


def test_a_guess_in_ratio_is_the_most_likely_id():
    logits = torch.randn(4, 100, generator=torch.Generator().manual_seed(7))
    places = [Place(1, 5, node=-1, cycle=3, is_guess=True)] * 4
    made = propose(logits, [RowSampling()] * 4, places, mode=Mode.RATIO, vocab_size=90)
    assert [p.token_id for p in made] == logits[:, :90].argmax(-1).tolist()


def test_ratio_needs_ids_to_draw_from():
    with pytest.raises(ValueError, match="num_listed"):
        proposals(torch.zeros(1, 100), RowSampling(), Mode.RATIO, num_listed=0)


EDITS = {
    "bias": RowSampling(bias=Bias.of([(3, 9.0), (30, 9.0), (61, 2.5)])),
    "penalties": RowSampling(
        penalties=Penalties(
            np.array([1, 30, 60]), np.array([2, 3, 0]), frequency=1.5, presence=1, repetition=1.8
        )
    ),
    "allowed": RowSampling(allowed=pack_ids(range(0, 90, 3), 90)),
    "banned": RowSampling(banned_ids=(30, 31, 32)),
    "both": RowSampling(allowed=pack_ids(range(0, 90, 3), 90), banned_ids=(30, 60)),
}


@pytest.mark.parametrize("name", EDITS)
@pytest.mark.parametrize("mode", list(Mode))
def test_a_draft_vocabulary_is_processed_as_the_ids_that_it_stands_for(name, mode):
    """As if all other ids of the target had no probability."""
    draft_ids, row = torch.arange(0, 100, 5), EDITS[name]
    own = torch.randn(200, len(draft_ids), generator=torch.Generator().manual_seed(6)) * 2
    logits = torch.full((200, 100), -1e30)
    logits[:, draft_ids] = own
    drafted = proposals(own, row, mode, num_listed=8, draft_ids=draft_ids)
    expected = proposals(logits, row, mode, num_listed=8)
    assert [each.token_id for each in drafted] == [each.token_id for each in expected]
    assert len({each.token_id for each in drafted}) > 3


def test_where_no_id_of_a_draft_vocabulary_is_allowed_the_pass_goes_on():
    draft_ids = torch.arange(0, 100, 5)
    row = RowSampling(allowed=pack_ids([1, 2, 3], 90), banned_ids=(5,))
    own = torch.randn(4, len(draft_ids), generator=torch.Generator().manual_seed(6))
    for mode in Mode:
        drafted = proposals(own, row, mode, draft_ids=draft_ids)
        assert all(each.token_id in draft_ids for each in drafted)
