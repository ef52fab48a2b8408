"""Drafts behind a constraint: cut where they were looked up, left whole where RATIO drew them."""

from dataclasses import dataclass

import pytest

from drafter_svc.legality import legal_block
from drafter_svc.source import Block, Wanted
from outrider.draft import Draft
from outrider.sampling import Mode, SamplingParams
from outrider.sampling_state import SamplingState


@dataclass(frozen=True)
class Even:
    """Allows even ids."""

    def behind(self, output_ids):
        return self

    def allowed(self, token_ids, parents):
        raise NotImplementedError

    def after(self, path):
        raise NotImplementedError

    def legal(self, path, token_ids, parents):
        return [
            all(i % 2 == 0 for i in (*path, *token_ids[: n + 1])) for n in range(len(token_ids))
        ]


def wanted(constrained) -> Wanted:
    state = SamplingState(SamplingParams(), 0, 3, constrained=constrained)
    return Wanted(0, (1, 2, 3), None, 4, state)


DRAWN = Draft((4, 6, 7, 8), "model", tuple((b"%d" % i, b"") for i in range(4)))
COPIED = Draft((4, 6, 7, 8), "ngram")


@pytest.mark.parametrize(
    ("draft", "mode", "length"),
    [
        (COPIED, Mode.GREEDY, 2),
        (COPIED, Mode.COUPLED, 2),
        (COPIED, Mode.RATIO, 2),
        (DRAWN, Mode.GREEDY, 2),
        (DRAWN, Mode.COUPLED, 2),
        (DRAWN, Mode.RATIO, 4),
    ],
)
def test_blocks_are_cut_before_what_is_not_legal(draft, mode, length):
    block = Block((2,), draft, 1.5)
    assert legal_block(block, wanted(None), mode) is block
    cut = legal_block(block, wanted(Even()), mode)
    assert cut.draft == draft.head(length)
    assert (cut.path, cut.compute_ms) == ((2,), 1.5)


def test_behind_a_path_that_cannot_be_there_is_nothing():
    assert not legal_block(Block((1,), COPIED), wanted(Even()), Mode.GREEDY).draft
