"""Draft sources that read the target's hidden states, as far as asking for them and noting them."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from prometheus_client import CollectorRegistry

from drafter_svc.__main__ import Bound, _register, lookup_identity
from drafter_svc.feature_store import FeatureStore
from drafter_svc.settings import DrafterSettings
from drafter_svc.source import Block, Opening, Source, Wanted
from outrider.draft import Draft
from outrider.features import Features
from outrider.serving.server import Register
from tests.integration.scripted import Book, ScriptedLease, ScriptedSource, alt

CHAIN, TREE = "reads-chain", "reads-tree"


@dataclass(slots=True)
class Record:
    """What one lease was given, in order."""

    chunks: list[Features] = field(default_factory=list)
    ends: list[tuple[int, int]] = field(default_factory=list)
    """At every draft: ids that were committed, and the position behind the last features."""

    @property
    def positions(self) -> list[int]:
        """Of all features, as they came."""
        return [at for chunk in self.chunks for at in range(chunk.start, chunk.end)]

    @property
    def values(self) -> npt.NDArray[np.uint16]:
        """All of them, [positions, width]."""
        return np.concatenate([chunk.values for chunk in self.chunks])


@dataclass(slots=True)
class RecordingSource(ScriptedSource):
    """Drafts by a guess, in a tree with a wrong brother before every node."""

    makes_trees: bool = False
    records: list[Record] = field(default_factory=list)

    def open(self, opening: Opening) -> "RecordingLease":
        """Begin a record."""
        self.num_open += 1
        self.records.append(Record())
        return RecordingLease(self, opening, record=self.records[-1])


@dataclass(slots=True)
class RecordingLease(ScriptedLease):
    """Notes what it takes."""

    record: Record = field(default_factory=Record)
    store: FeatureStore = field(default_factory=FeatureStore)

    def take_features(self, features: Features) -> None:
        """Keep them until the next draft."""
        self.store.add(features)

    async def draft(self, wanted: Wanted) -> Block:
        """Note what came, then draft by the guess."""
        self.record.chunks += self.store.take()
        known = self.record.chunks[-1].end if self.record.chunks else 0
        self.record.ends.append((wanted.base, known))
        # What a dataclass with slots makes of super() is another class.
        block = await ScriptedLease.draft(self, wanted)
        assert isinstance(self.source, RecordingSource)
        return Block(block.path, _branched(block.draft)) if self.source.makes_trees else block


def _branched(draft: Draft) -> Draft:
    """Put a brother before every node of a chain."""
    ids = [each for token_id in draft.token_ids for each in (token_id ^ 1, token_id)]
    parents = [2 * (node // 2) - 1 for node in range(len(ids))]
    return Draft(tuple(ids), draft.source, parents=tuple(parents))


def recording_sources(book: Book, layers: Sequence[int], hidden_size: int) -> list[RecordingSource]:
    """Return both, which ask for these layers."""
    return [
        RecordingSource(
            name,
            alt,
            book,
            feature_layers=tuple(layers),
            feature_width=len(layers) * hidden_size,
            makes_trees=name == TREE,
        )
        for name in (CHAIN, TREE)
    ]


@asynccontextmanager
async def open_recording(sources: Sequence[Source]) -> AsyncIterator[Register]:
    """The real drafter service over them."""
    settings = DrafterSettings(name="recording")
    yield _register(
        settings,
        {each.name: each for each in sources},
        Bound(lookup_identity(settings)),
        CollectorRegistry(),
    )
