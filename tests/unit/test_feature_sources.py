"""A source that puts another before or beside a model hands the model's features on."""

from dataclasses import dataclass, field

import pytest

from drafter_svc.chain import ChainedSource
from drafter_svc.lookup import SuffixSource
from drafter_svc.merged import MergedSource
from drafter_svc.recycling import RecyclingSource
from drafter_svc.source import Block, FeatureLease, Opening, Source, Wanted
from outrider.draft import Draft
from outrider.features import Features
from outrider.sampling import Mode, SamplingParams
from outrider.sampling_state import SequenceState
from tests.unit.test_features import features

OPENING = Opening(Mode.GREEDY, SamplingParams(temperature=0.0), 0, 4, 100, "")


@dataclass(slots=True)
class ReadingLease:
    """Notes what it is given."""

    taken: list[Features] = field(default_factory=list)
    cache_length: int = 0

    def take_features(self, given: Features) -> None:
        self.taken.append(given)

    async def draft(self, wanted: Wanted) -> Block:
        return Block((), Draft())

    def close(self) -> None: ...


@dataclass(slots=True)
class ReadingSource:
    """Wants three layers."""

    name: str = "reading"
    needs_tokenizer: bool = True
    num_continuations: int = 0
    feature_layers: tuple[int, ...] = (1, 3, 5)
    feature_width: int = 24
    lease: ReadingLease = field(default_factory=ReadingLease)

    def open(self, opening: Opening) -> ReadingLease:
        return self.lease


@pytest.mark.parametrize("kind", ["chained", "merged"])
async def test_a_copy_costs_the_model_no_features(kind: str):
    model = ReadingSource()
    source: Source
    if kind == "chained":
        source = ChainedSource(SuffixSource(), model, min_score=0.0)  # always copies
    else:
        source = MergedSource(RecyclingSource(), model)
    assert (source.feature_layers, source.feature_width) == ((1, 3, 5), 24)
    lease = source.open(OPENING)
    assert isinstance(lease, FeatureLease)
    given = features(0, 2, width=24)
    lease.take_features(given)
    await lease.draft(
        Wanted(0, (1, 2, 3, 1, 2, 3), None, 4, SequenceState(SamplingParams(), 0, 100).state())
    )
    assert model.lease.taken == [given]


@pytest.mark.parametrize("source", [SuffixSource(), RecyclingSource()])
def test_present_sources_want_none(source: Source):
    assert (source.feature_layers, source.feature_width) == ((), 0)
