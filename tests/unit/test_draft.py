"""A draft keeps what belongs to its tokens, cut or sent."""

from dataclasses import replace

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


@pytest.mark.parametrize(
    "changes",
    [
        {"logit_margins": (0.5,)},
        {"distributions": ((b"", b""),)},
        {"parents": (-1,)},
        {"probes": (True,)},
        {"parents": (5, 6, 7)},
    ],
)
def test_of_what_is_no_tree_the_first_path_is_empty(changes):
    assert len(replace(TREE, **changes).first_path()) == 0


def test_the_first_path_goes_along_the_earliest_children_that_may_be_accepted():
    assert TREE.first_path().token_ids == (4, 6)
    probing = replace(TREE, probes=(True, False, False))
    assert probing.first_path().token_ids == (5,)
    assert probing.num_proposed == 2
    chain = Draft((1, 2, 3), "x")
    assert chain.first_path() == chain


def test_the_simplest_form_of_a_chain_has_no_parents_unless_it_has_probes():
    chain = Draft((1, 2), "x", parents=(-1, 0), probes=(False, False))
    assert chain.simplest() == Draft((1, 2), "x")
    probing = Draft((1, 2), "x", probes=(False, True))
    assert probing.simplest() == replace(probing, parents=(-1, 0))
    assert TREE.simplest() == TREE


def test_what_is_made_of_a_read_draft_is_written_anew():
    read = Draft.from_proto(DRAFT.to_proto())
    assert read == DRAFT
    assert Draft.from_proto(read.head(2).to_proto()) == DRAFT.head(2)
    assert Draft.from_proto(replace(read, source="other").to_proto()).source == "other"


@pytest.mark.parametrize(
    ("nodes", "is_path"),
    [((), True), ((0,), True), ((0, 1, 2), True), ((0, 1, 2, 3), False), ((1,), False)]
    + [((0, 2), False), ((-1,), False), ((0, 0), False)],
)
def test_paths_of_a_chain(nodes, is_path):
    assert DRAFT.has_path(nodes) == is_path
    assert replace(DRAFT, parents=(-1, 0, 1)).has_path(nodes) == is_path


def test_the_legal_part_of_a_chain_ends_before_what_is_not():
    part = DRAFT.legal_part([True, False, False])
    assert part.token_ids == (4,)
    assert part.distributions == DRAFT.distributions[:1]
    assert part.logit_margins == (0.5,)
    assert part.source == "model"
    assert DRAFT.legal_part([True] * 3) is DRAFT
    assert not DRAFT.legal_part([False] * 3)


def test_the_legal_part_of_a_tree_keeps_who_stands_behind_whom():
    tree = Draft((1, 2, 3, 4, 5, 6), "tree", parents=(-1, -1, 0, 1, 1, 4), logit_margins=(0.5,) * 6)
    part = tree.legal_part([False, True, False, True, True, True])
    assert part == Draft((2, 4, 5, 6), "tree", parents=(-1, 0, 0, 2), logit_margins=(0.5,) * 4)


def test_what_is_not_legal_beside_probes_becomes_one():
    """Their source learns from what is said of the very nodes that it sent."""
    draft = Draft((1, 2, 3), "lookahead", parents=(-1, 0, -1), probes=(False, False, True))
    part = draft.legal_part([True, False, False])
    assert part == replace(draft, probes=(False, True, True))
    assert draft.legal_part([True, True, False]) == draft
