"""Hidden states on the wire: whole positions in bounded messages; what does not fit is none."""

import numpy as np
import pytest

from drafter_svc.feature_store import FeatureStore
from orchestrator.kept_features import KeptFeatures, StepFeatures
from outrider.features import MAX_FEATURE_LAYERS, Features, objection_to_layers
from outrider.v1 import common_pb2 as pb


def features(start: int, num_positions: int, width: int = 3) -> Features:
    """Numbers that tell where they stand."""
    numbers = np.arange(num_positions * width, dtype=np.uint16).reshape(-1, width)
    return Features(start, numbers + np.uint16(100 * start))


def test_there_and_back():
    one = features(7, 4)
    other = Features.from_proto(one.to_proto(), 3)
    assert other is not None
    assert (other.start, other.end, other.num_bytes) == (7, 11, 24)
    assert np.array_equal(other.values, one.values)
    assert one.to_proto().values[:4] == bytes([0xBC, 0x02, 0xBD, 0x02])  # 700, 701


@pytest.mark.parametrize(
    ("max_bytes", "num_positions"), [(1, 1), (6, 1), (17, 2), (18, 3), (999, 7)]
)
def test_chunks_hold_whole_positions_and_cover_all(max_bytes: int, num_positions: int):
    whole = features(5, 7)
    parts = list(whole.chunks(max_bytes))
    assert all(len(part.values) == num_positions for part in parts[:-1])
    assert [part.start for part in parts[1:]] == [part.end for part in parts[:-1]]
    assert (parts[0].start, parts[-1].end) == (5, 12)
    assert np.array_equal(np.concatenate([part.values for part in parts]), whole.values)


@pytest.mark.parametrize("values", [b"", b"abcde", b"abcdefgh"])
def test_what_is_no_whole_positions_is_no_message(values: bytes):
    assert Features.from_proto(pb.FeatureChunk(values=values), 3) is None
    assert Features.from_proto(pb.FeatureChunk(values=b"abcdef"), 0) is None


@pytest.mark.parametrize(
    ("layers", "max_layer", "objection"),
    [
        ((0, 2), 2, ""),
        ((3, 0), 2, "layer 3 is above 2"),
        ((), 2, "names no layer"),
        ((1, 1), 2, "names a layer twice"),
        (range(9), 20, f"9 layers, at most {MAX_FEATURE_LAYERS}"),
        ((0,), None, "this model gives no hidden states"),
    ],
)
def test_layers_that_cannot_be_had_are_named(layers, max_layer, objection):
    assert objection_to_layers(layers, max_layer) == objection


def test_a_store_hands_over_once_and_drops_the_oldest():
    store = FeatureStore(max_bytes=5 * 6)
    for start in (0, 2, 4):
        store.add(features(start, 2))
    assert (store.num_dropped, store.num_bytes) == (1, 24)
    assert [part.start for part in store.take()] == [2, 4]
    assert store.take() == ()
    store.add(features(9, 5))
    assert [part.start for part in store.take()] == [9]


def test_what_waits_for_a_drafter_is_bounded_too():
    kept = KeptFeatures(max_bytes=10)
    chunks = [pb.FeatureChunk(start=start, values=bytes(4)) for start in range(4)]
    for chunk in chunks:
        kept.add(chunk)
    assert kept.num_bytes == 8
    assert kept.take() == tuple(chunks[2:])
    assert kept.take() == ()
    assert kept.num_bytes == 0
    assert StepFeatures((1,), tuple(chunks)).num_bytes == 16
