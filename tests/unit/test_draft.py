"""A draft keeps what belongs to its tokens, cut or sent."""

import pytest

from outrider.draft import NO_DRAFT, Draft

DRAFT = Draft((4, 5, 6), "model", ((b"a", b"1"), (b"b", b"2"), (b"c", b"3")), (0.5, 0.25, 1.0))


@pytest.mark.parametrize("num_tokens", [0, 1, 2, 3, 9])
def test_head_cuts_all_parts_alike(num_tokens):
    head = DRAFT.head(num_tokens)
    assert len(head) == min(num_tokens, 3)
    assert head.token_ids == (4, 5, 6)[:num_tokens]
    assert head.distributions == DRAFT.distributions[:num_tokens]
    assert head.logit_margins == DRAFT.logit_margins[:num_tokens]
    assert head.source == "model"


TREE = Draft((4, 5, 6), "model", parents=(-1, -1, 0))


def test_a_tree_stays_one():
    assert TREE.head(2).parents == (-1, -1)


@pytest.mark.parametrize("draft", [DRAFT, NO_DRAFT, Draft((1,), "ngram"), TREE])
def test_a_message_there_and_back(draft):
    assert Draft.from_proto(draft.to_proto()) == draft


def test_no_draft_is_false():
    assert not NO_DRAFT
    assert DRAFT
