"""A draft with what its tokens were drawn from, and how they are drawn from it."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from outrider import noise, tree, wire
from outrider.draft import Draft
from outrider.rules import Floats, Ints


@dataclass(frozen=True, slots=True)
class Proposed:
    """A draft with the counts that each of its tokens was drawn from.

    ``listed`` holds ids and counts [N] of every token. A point mass lists its own token alone;
    ``is_sampled`` is False for a draft of those. ``is_corrected`` says that the last token is not
    the drafter's but the verifier's own draw from the drafter's counts.
    """

    token_ids: tuple[int, ...] = ()
    listed: tuple[tuple[Ints, Ints], ...] = ()
    is_sampled: bool = False
    is_corrected: bool = False
    parents: tuple[int, ...] = ()
    """Of a tree, as in ``outrider.tree``; empty for a chain."""
    probes: tuple[bool, ...] = ()
    """Of a tree: nodes that are never accepted; empty: there are none."""

    @classmethod
    def of(cls, draft: Draft) -> "Proposed":
        """Read a valid draft."""
        if draft.distributions:
            listed = tuple(wire.unpack(*each) for each in draft.distributions)
            return cls(draft.token_ids, listed, is_sampled=True, parents=draft.parents)
        whole = np.array([wire.TOTAL_COUNT], dtype=np.int64)
        ids = np.array(draft.token_ids, dtype=np.int64)
        listed = tuple((ids[i : i + 1], whole) for i in range(len(ids)))
        return cls(draft.token_ids, listed, parents=draft.parents, probes=draft.probes)

    def may_accept(self, node: int) -> bool:
        """False for a probe."""
        return not self.probes or not self.probes[node]

    @property
    def row_depths(self) -> list[int]:
        """How far behind the last committed token each row of the verification stands: 0 for its
        own, then one for every draft token."""
        num = len(self.token_ids)
        return [0, *(tree.depths(self.parents) if self.parents else range(1, num + 1))]

    def redrawn(
        self, *, proposal_key: int, base_position: int, cycle: int
    ) -> "tuple[Proposed, str]":
        """Return the draft as its counts and the proposal key draw it, and what was wrong with it.

        Behind the first wrong token nothing is left, since what follows was drawn for that one; in
        its place stands the right one. Dropping the whole draft instead would keep the drafts
        whose tokens happen to be right, which is a choice by tokens and changes the law.
        """
        if not self.is_sampled:
            return self, ""
        num = len(self.token_ids)
        positions = range(base_position, base_position + num)
        uniforms = proposal_uniforms([proposal_key] * num, range(num), positions, [cycle] * num)
        indices = draw_counts([counts for _, counts in self.listed], uniforms)
        for node, (index, (ids, _)) in enumerate(zip(indices, self.listed, strict=True)):
            right, stated = int(ids[index]), self.token_ids[node]
            if right != stated:
                tokens = (*self.token_ids[:node], right)
                corrected = Proposed(tokens, self.listed[: node + 1], True, is_corrected=True)
                return corrected, f"token_ids[{node}]: {stated}, the proposal key draws {right}"
        return self, ""


def draw_counts(counts: Sequence[Ints], uniforms: Floats) -> list[int]:
    """Return for each list of counts the index that a uniform picks, by cumulative counts."""
    picked = np.floor(uniforms * wire.TOTAL_COUNT)
    return [
        int(np.searchsorted(np.cumsum(row), at, side="right"))
        for row, at in zip(counts, picked, strict=True)
    ]


def proposal_uniforms(
    keys: Sequence[int], nodes: Sequence[int], positions: Sequence[int], cycles: Sequence[int]
) -> Floats:
    """Return the numbers that draft tokens are drawn with, one per token."""
    return noise.uniforms(keys, nodes, positions, cycles, noise.Stream.PROPOSAL)
