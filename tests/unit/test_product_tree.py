"""Product trees hold the likeliest nodes; trees in COUPLED prefer what the shared noise favours."""

import itertools
import math
import random

import pytest
import torch

from drafter_svc.product_tree import product_tree
from outrider import coupling
from outrider.distribution import RowSampling
from outrider.proposal import Place, likely
from outrider.sampling import Mode
from outrider.tree import TreeLayout


@pytest.mark.parametrize("seed", range(30))
def test_no_node_left_out_is_likelier_than_one_taken(seed):
    rng = random.Random(seed)
    places = []
    for _ in range(rng.randint(1, 4)):
        shares = sorted((rng.random() for _ in range(rng.randint(1, 5))), reverse=True)
        places.append([(i, share / (sum(shares) + 0.1)) for i, share in enumerate(shares)])
    num_nodes = rng.randint(1, 20)
    tree = product_tree(places, num_nodes)
    everything = sorted(
        (
            math.prod(place[rank][1] for place, rank in zip(places, ranks, strict=False))
            for depth in range(1, len(places) + 1)
            for ranks in itertools.product(*(range(len(place)) for place in places[:depth]))
        ),
        reverse=True,
    )
    taken, ways = [], [()]
    for token_id, parent in zip(tree.token_ids, tree.parents, strict=True):
        ways.append((*ways[parent + 1], token_id))
        shares = [dict(place)[i] for place, i in zip(places, ways[-1], strict=False)]
        taken.append(math.prod(shares))
    assert len(set(ways)) == len(ways)
    assert taken == pytest.approx(everything[:num_nodes])
    TreeLayout.of(tree.parents)


def test_the_first_candidate_is_the_token_that_the_target_would_draw_from_the_same_logits():
    logits = 2 * torch.randn(200, 40, generator=torch.Generator().manual_seed(1))
    rows = [RowSampling()] * 200
    places = [Place(key=5, position=n) for n in range(200)]
    drawn, _ = coupling.coupled(logits.log_softmax(-1), [5] * 200, range(200), head_size=512)
    expected = {Mode.GREEDY: logits.argmax(-1).tolist(), Mode.COUPLED: drawn.tolist()}
    assert expected[Mode.GREEDY] != expected[Mode.COUPLED]
    for mode, ids in expected.items():
        found = likely(logits, rows, places, mode=mode, vocab_size=40, num_ids=40)
        assert found.shares.sum(-1) == pytest.approx(1)
        assert (found.shares[:, :-1] >= found.shares[:, 1:]).all()
        assert found.ids[:, 0].tolist() == ids
