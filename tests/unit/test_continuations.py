"""Continuations on the wire: what does not fit is no message."""

import numpy as np
import pytest

from outrider.continuations import Continuations
from outrider.v1 import common_pb2 as pb


def test_there_and_back():
    one = Continuations((5, 6), np.array([[1, 2, 3], [4, 5, 4_000_000_000]]))
    other = Continuations.from_proto(one.to_proto())
    assert other is not None
    assert other.token_ids == (5, 6)
    assert other.rows() == [[1, 2, 3], [4, 5, 4_000_000_000]]
    assert not other.is_below(1000)
    assert Continuations((5,), np.array([[7]])).is_below(8)
    assert not Continuations((8,), np.array([[7]])).is_below(8)


@pytest.mark.parametrize(
    "message",
    [
        pb.Continuations(),
        pb.Continuations(token_ids=[1, 2]),
        pb.Continuations(token_ids=[1, 2], top_ids=b"abcd"),
        pb.Continuations(token_ids=[1], top_ids=b"abc"),
        pb.Continuations(top_ids=b"abcd"),
    ],
)
def test_parts_that_do_not_fit_are_no_message(message):
    assert Continuations.from_proto(message) is None
