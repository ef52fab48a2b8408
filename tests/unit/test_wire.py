"""Draft distributions are exact on the wire, and an invalid draft is named by its fault."""

import numpy as np
import pytest

from outrider import wire
from outrider.v1 import common_pb2 as pb


@pytest.mark.parametrize(
    ("probs", "counts"),
    [
        ([1.0], [65536]),
        ([0.5, 0.5], [32768, 32768]),
        ([3.0, 1.0], [49152, 16384]),
        ([1 / 3, 1 / 3, 1 / 3], [21846, 21845, 21845]),
        ([1.0, 0.0, 1e-30], [65534, 1, 1]),
    ],
)
def test_quantise_by_largest_remainder(probs, counts):
    assert wire.quantise(list(range(len(probs))), probs).tolist() == counts


def test_quantise_keeps_its_promises_on_random_weights():
    rng = np.random.default_rng(1)
    for size in (1, 2, 3, 32, 500, 4096):
        for concentration in (0.01, 0.3, 5.0):
            probs = rng.dirichlet([concentration] * size)
            counts = wire.quantise(list(range(size)), probs)
            assert counts.sum() == 65536
            assert counts.min() >= 1
            assert np.abs(counts / 65536 - probs).sum() / 2 <= size / 65536
            order = np.argsort(probs)
            if size <= 32:
                assert (np.diff(counts[order]) >= -1).all()


@pytest.mark.parametrize(
    ("ids", "probs"),
    [
        ([], []),
        ([1], [0.5, 0.5]),
        ([1, 1], [0.5, 0.5]),
        ([1, 2], [0.0, 0.0]),
        ([1, 2], [-1.0, 2.0]),
        ([1, 2], [float("nan"), 1.0]),
        ([1, 2], [float("inf"), 1.0]),
        (list(range(4097)), [1.0] * 4097),
    ],
)
def test_quantise_refuses_what_is_no_distribution(ids, probs):
    with pytest.raises(ValueError, match=r"."):
        wire.quantise(ids, probs)


def test_pack_and_unpack_are_inverse():
    ids, counts = [7, 0, 2**32 - 1], [65534, 1, 1]
    packed = wire.pack(ids, counts)
    assert packed == (
        b"\x07\0\0\0\0\0\0\0\xff\xff\xff\xff",
        b"\xfd\xff\0\0\0\0",
    )
    unpacked = wire.unpack(*packed)
    assert [u.tolist() for u in unpacked] == [ids, counts]
    assert wire.unpack(*wire.pack([3], [65536]))[1].tolist() == [65536]


def listing(ids: list[int], counts: list[int]) -> pb.TokenDistribution:
    packed_ids, packed_counts = wire.pack(ids, counts)
    return pb.TokenDistribution(ids=packed_ids, counts=packed_counts)


GOOD = listing([1, 2, 3], [65534, 1, 1])

VALID = {
    "empty": pb.Draft(),
    "ids only": pb.Draft(token_ids=[1, 99]),
    "explicit chain": pb.Draft(token_ids=[1, 2, 3], parents=[-1, 0, 1]),
    "tree": pb.Draft(token_ids=[1, 2, 1], parents=[-1, -1, 1]),
    "probes": pb.Draft(token_ids=[1, 2], probe=[False, True]),
    "full": pb.Draft(
        token_ids=[1, 3],
        distributions=[GOOD, GOOD],
        logit_margins=[0.5, float("inf")],
        probe=[False, False],
        source="model",
    ),
}

INVALID = {
    "too long": (pb.Draft(token_ids=[1] * 5), "5 draft tokens, at most 4"),
    "id": (pb.Draft(token_ids=[1, 100]), "token_ids[1]: 100 is not below the vocabulary size 100"),
    "parents count": (pb.Draft(token_ids=[1, 2], parents=[-1]), "parents: 1 for 2 draft tokens"),
    "parents without tokens": (pb.Draft(parents=[-1]), "parents: 1 for 0 draft tokens"),
    "later parent": (
        pb.Draft(token_ids=[1, 2], parents=[1, -1]),
        "parents[0]: 1 is not an earlier node or -1",
    ),
    "own parent": (
        pb.Draft(token_ids=[1, 2], parents=[-1, 1]),
        "parents[1]: 1 is not an earlier node or -1",
    ),
    "parent below -1": (
        pb.Draft(token_ids=[1], parents=[-2]),
        "parents[0]: -2 is not an earlier node or -1",
    ),
    "distributions count": (
        pb.Draft(token_ids=[1, 2], distributions=[GOOD]),
        "distributions: 1 for 2 draft tokens",
    ),
    "margins count": (
        pb.Draft(token_ids=[1, 2], logit_margins=[1.0]),
        "logit_margins: 1 for 2 draft tokens",
    ),
    "margin not a number": (
        pb.Draft(token_ids=[1], logit_margins=[float("nan")]),
        "logit_margins: not a number",
    ),
    "probe count": (pb.Draft(token_ids=[1], probe=[False] * 2), "probe: 2 for 1 draft tokens"),
    "probe": (
        pb.Draft(token_ids=[1], probe=[True], distributions=[listing([1, 2], [65535, 1])]),
        "probe: a probe is drawn from nothing, but distributions are given",
    ),
    "sum": (
        pb.Draft(token_ids=[1], distributions=[listing([1, 2], [65534, 1])]),
        "distributions[0]: counts sum to 65535, not 65536",
    ),
    "repeated ids": (
        pb.Draft(token_ids=[1], distributions=[listing([1, 1], [65535, 1])]),
        "distributions[0]: ids repeat",
    ),
    "listed id": (
        pb.Draft(token_ids=[1], distributions=[listing([1, 100], [65535, 1])]),
        "distributions[0]: 100 is not below the vocabulary size 100",
    ),
    "drawn id": (
        pb.Draft(token_ids=[1, 4], distributions=[GOOD, GOOD]),
        "distributions[1]: 4 was drawn but is not listed",
    ),
    "empty distribution": (
        pb.Draft(token_ids=[1], distributions=[pb.TokenDistribution()]),
        "distributions[0]: 0 ids and 0 counts; 1 to 4096 of each",
    ),
    "lengths differ": (
        pb.Draft(
            token_ids=[1], distributions=[pb.TokenDistribution(ids=GOOD.ids, counts=b"\xff\xff")]
        ),
        "distributions[0]: 3 ids and 1 counts; 1 to 4096 of each",
    ),
    "odd bytes": (
        pb.Draft(token_ids=[1], distributions=[pb.TokenDistribution(ids=b"\1\0\0", counts=b"\0")]),
        "distributions[0]: 3 bytes of ids and 1 of counts",
    ),
}


@pytest.mark.parametrize("draft", VALID.values(), ids=VALID)
def test_valid_drafts_have_no_reason(draft):
    assert wire.validate_draft(draft, vocab_size=100, max_draft_tokens=4, max_depth=4) is None


@pytest.mark.parametrize(("draft", "reason"), INVALID.values(), ids=INVALID)
def test_c20_invalid_drafts_name_their_fault(draft, reason):
    assert wire.validate_draft(draft, vocab_size=100, max_draft_tokens=4, max_depth=4) == reason


def test_a_draft_ends_before_the_context_does():
    chain = pb.Draft(token_ids=[1, 2, 3])
    tree = pb.Draft(token_ids=[1, 2, 3], parents=[-1, -1, 0])

    def reason(draft: pb.Draft, max_depth: int) -> str | None:
        return wire.validate_draft(draft, vocab_size=9, max_draft_tokens=4, max_depth=max_depth)

    assert reason(chain, 3) is None
    assert reason(tree, 2) is None
    assert reason(chain, 2) == "3 draft tokens in a row, at most 2 fit the context"
    assert reason(tree, 1) == "2 draft tokens in a row, at most 1 fit the context"
    assert reason(pb.Draft(), 0) is None
