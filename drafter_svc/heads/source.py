"""Draft sources "eagle3", "medusa", "redrafter" and their trees: a head on the target's states."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from drafter_svc.feature_store import FeatureStore
from drafter_svc.heads.drafting import HeadDrafting
from drafter_svc.heads.engine import HeadEngine, Submitted
from drafter_svc.heads.kept import Kept, KeptStates
from drafter_svc.heads.work import HeadState, Reading
from drafter_svc.source import Block, Opening, Wanted
from outrider import sources
from outrider.draft import Draft
from outrider.features import Features


@dataclass(slots=True)
class HeadLease:
    """One sequence at a head: its ids, the hidden states that came, and what was read of them.

    ``begin`` is the position of the first pair that was read: where hidden states of a prompt were
    lost, the head begins behind them and sees less.
    """

    engine: HeadEngine
    opening: Opening
    source: str
    makes_trees: bool
    max_length: int
    state: HeadState
    arrived: FeatureStore = field(default_factory=FeatureStore)
    token_ids: list[int] = field(default_factory=list)
    begin: int = 0
    kept: KeptStates = field(default_factory=KeptStates)
    submitted: Submitted | None = None

    @property
    def cache_length(self) -> int:
        """All committed ids that were told."""
        return len(self.token_ids)

    def take_features(self, features: Features) -> None:
        """Keep hidden states until the next draft."""
        self.arrived.add(features)

    async def draft(self, wanted: Wanted) -> Block:
        """Read what came, then draft behind the committed ids.

        Behind a pending draft nothing is proposed: the hidden states that its verification brings
        are worth more than the time that drafting without them would save.
        """
        if self.submitted is not None:  # one that was cancelled, in a pass that still runs
            await self.submitted.left()
        self._tell(wanted.start, wanted.token_ids)
        if wanted.pending is not None:
            return Block(wanted.pending, Draft(source=self.source))
        reading = self._read()
        job = self._job(wanted, reading)
        if job is None:
            return Block((), Draft(source=self.source))
        self.submitted = self.engine.submit(job)
        await self.submitted.result()
        return job.block()

    def close(self) -> None:
        """Leave what was read to sequences that begin alike."""
        if self.submitted is None or self.submitted.future.done():
            self.state.drop_nodes()
            self.kept.keep(self.opening.salt, Kept(tuple(self.token_ids), self.begin, self.state))

    def _tell(self, start: int, token_ids: Sequence[int]) -> None:
        """Take in ids; pairs with a token that is another now are forgotten."""
        known = self.token_ids[start:]
        num_same = 0
        while num_same < min(len(known), len(token_ids)) and (
            known[num_same] == token_ids[num_same]
        ):
            num_same += 1
        if num_same < len(known):
            self.state.truncate(max(0, start + num_same - 1 - self.begin))
        self.token_ids[start:] = token_ids

    def _read(self) -> Reading | None:
        """Return the pairs that can be read now."""
        most = len(self.token_ids) - 1  # a pair needs the token behind its position
        rows: list[np.ndarray] = []
        begin = end = self.begin + self.state.num_pairs
        for part in self.arrived.take():
            if part.start > end:
                rows = []
                begin = end = self._begin_at(part.start)
            if part.end > end:
                rows.append(part.values[end - part.start :])
                end = part.end
        if not rows:
            return None
        values = np.concatenate(rows)[: max(0, most - begin)]
        if not len(values):
            return None
        features = torch.from_numpy(values).view(torch.bfloat16)
        following = self.token_ids[begin + 1 : begin + 1 + len(values)]
        return Reading(self.state, features, following)

    def _begin_at(self, position: int) -> int:
        """Go on at a position before which hidden states were lost, or never computed.

        Where another sequence has read the same ids, its pairs are taken over. Else what was read
        before the gap is of no use.
        """
        kept = self.kept.find(self.opening.salt, self.token_ids, position)
        if kept is None:
            self.state.truncate(0)
            self.begin = position
        else:
            self.begin = kept.begin
            self.state.adopt(kept.state, position - kept.begin)
        return position

    def _job(self, wanted: Wanted, reading: Reading | None) -> HeadDrafting | None:
        num_read = self.begin + self.state.num_pairs
        num_read += 0 if reading is None else len(reading.token_ids)
        room = self.max_length - len(self.token_ids)
        forced, reach = self.token_ids[num_read + 1 :], self.engine.head.reach
        max_depth = room if reach is None else min(room, reach - len(forced))
        num_wanted = wanted.num_draft_tokens if max_depth > 0 else 0
        if reading is None and (self.state.root_logits is None or not num_wanted):
            return None
        return HeadDrafting(
            state=self.state,
            opening=self.opening,
            wanted=wanted,
            source=self.source,
            makes_trees=self.makes_trees,
            reading=reading,
            forced=forced,
            num_wanted=num_wanted,
            max_depth=max_depth,
        )


@dataclass(slots=True)
class HeadSource:
    """Drafts with a head; ``kind`` is its name on the wire, of trees with "-tree" behind it."""

    engine: HeadEngine
    kind: str
    feature_layers: tuple[int, ...]
    feature_width: int
    max_length: int
    makes_trees: bool = False
    kept: KeptStates = field(default_factory=KeptStates)
    needs_tokenizer: bool = True
    num_continuations: int = 0

    @property
    def name(self) -> str:
        """Name on the wire."""
        return f"{self.kind}{sources.TREE}" if self.makes_trees else self.kind

    def open(self, opening: Opening) -> HeadLease:
        """Begin with nothing read."""
        return HeadLease(
            engine=self.engine,
            opening=opening,
            source=self.name,
            makes_trees=self.makes_trees,
            max_length=self.max_length,
            state=self.engine.head.open(),
            kept=self.kept,
        )
