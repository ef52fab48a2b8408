"""A draft lease keeps hidden states of the layers that its drafter reads, and of no others."""

from types import SimpleNamespace
from typing import Any

from orchestrator.board import DraftBoard
from orchestrator.draft_lease import GrpcDraftLease
from orchestrator.feedback import FeedbackWanted
from orchestrator.kept_features import StepFeatures
from orchestrator.worker import Role, Worker
from outrider.v1 import common_pb2, drafter_pb2


def features(*layers: int) -> StepFeatures:
    return StepFeatures(layers, (common_pb2.FeatureChunk(values=b"abcd"),))


def lease(*layers: int) -> GrpcDraftLease:
    parts: Any = SimpleNamespace()
    wanted = FeedbackWanted(feature_layers=layers)
    return GrpcDraftLease(
        parts, DraftBoard(), drafter_pb2.DraftOpen(), parts, feedback_wanted=wanted
    )


def test_layers_of_a_drafter_that_is_gone_are_not_kept():
    one = lease(2, 0)
    one.teach_features(features(0, 2))
    assert not one.features.num_bytes
    one.teach_features(features(2, 0))
    assert one.features.num_bytes == 4


def test_what_the_opened_stream_says_decides():
    one = lease(2, 0)
    one.teach_features(features(2, 0))
    spec = common_pb2.FeatureSpec(layers=[2, 0])
    one._learn_wishes(drafter_pb2.DraftOpened(features=spec))
    assert one.features.num_bytes == 4
    one._learn_wishes(drafter_pb2.DraftOpened())
    assert (one.feedback_wanted.feature_layers, one.features.num_bytes) == ((), 0)


def test_a_drafter_wants_what_the_source_wants_that_it_will_choose():
    channel: Any = None
    worker = Worker("a", Role.DRAFTER, channel, sources=("x", "y"), features={"y": (3,)})
    assert worker.feature_layers(()) == ()
    assert worker.feature_layers(("z", "y", "x")) == (3,)
    assert worker.feature_layers(("x", "y")) == ()
    assert worker.feature_layers(("z",)) == ()
