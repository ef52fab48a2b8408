"""The job of one advance at a draft head: read what the target gave, then draft.

Chains are drawn token after token. Trees grow level by level: the likeliest nodes of a level are
gone on from, and of all nodes the likeliest are kept (EAGLE-2, Li et al. 2024, arXiv:2406.16858).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from drafter_svc.heads.work import Growing, HeadState, Reading, Work
from drafter_svc.source import Block, Opening, Wanted
from outrider.distribution import RowSampling
from outrider.draft import Draft
from outrider.proposal import Likely, Place, Proposal
from outrider.sampling import Mode
from outrider.tree import GrowingTree

MAX_TREE_DEPTH = 8
MAX_LEVEL_WIDTH = 10
"""Nodes of a level that are gone on from, and children that one node gets."""
LEVEL_COST, MOST_PROMISE = 2.4, 0.3
"""What the nodes of a level must promise together before their children are asked for: see
``least_promise``."""


def least_promise(num_wanted: int) -> float:
    """Return the expected accepted nodes of a level below which a draft does not go on.

    A level takes a head about as long as the target takes for one more row. A draft of N nodes
    yields some two tokens in the time of more than N rows, and not half of the children are right.
    """
    return min(LEVEL_COST / num_wanted, MOST_PROMISE)


@dataclass(slots=True)
class HeadDrafting:
    """What the engine's thread does for one advance.

    ``forced`` are committed ids whose hidden states have not come: the head goes through them on
    its own output, one by one. Behind them it drafts.
    """

    state: HeadState
    opening: Opening
    wanted: Wanted
    source: str
    makes_trees: bool
    reading: Reading | None
    forced: Sequence[int]
    num_wanted: int
    max_depth: int
    """Tokens in a row."""
    work: Work | None = field(init=False, default=None)
    compute_ms: float = 0.0
    drawn: torch.Tensor | None = field(init=False, default=None)
    """Logits that tokens are to be drawn from."""
    _num_forced: int = field(init=False, default=0)
    _tokens: list[Proposal] = field(init=False, default_factory=list)
    _tree: GrowingTree = field(init=False, default_factory=GrowingTree)
    _frontier: list[int] = field(init=False, default_factory=list)
    """Tree nodes whose children the present pass finds; [-1] at the root."""
    _level: int = field(init=False, default=0)
    _node_of: dict[int, int] = field(init=False, default_factory=dict)
    """The head's node of a tree node that was gone on from."""

    def __post_init__(self) -> None:
        self.state.drop_nodes()
        self._frontier = [-1]
        if self.reading is not None:
            self.work = self.reading
        elif self.state.root_logits is not None:
            self._go_on_from(self.state.root_logits[None])

    @property
    def is_done(self) -> bool:
        """True once nothing is left to compute or to draw."""
        return self.work is None and self.drawn is None

    @property
    def must_run(self) -> bool:
        """True while pairs are to be read, which may come only once."""
        return isinstance(self.work, Reading)

    def take_logits(self, rows: torch.Tensor) -> None:
        """Take what a pass gave."""
        if isinstance(self.work, Reading):
            self.state.root_logits = rows[-1].clone()
        elif self._num_forced < len(self.forced):
            self._num_forced += 1
        self.work = None
        self._go_on_from(rows)

    def _go_on_from(self, rows: torch.Tensor) -> None:
        """Draw from the rows, once all that is forced was gone through."""
        if not self.num_wanted:
            return
        if self._num_forced < len(self.forced):
            parent = self._num_forced - 1
            self.work = Growing(self.state, [parent], [self.forced[self._num_forced]])
        else:
            self.drawn = rows

    @property
    def num_drawn(self) -> int:
        """Rows of ``drawn``."""
        return 0 if self.drawn is None else len(self.drawn)

    @property
    def base(self) -> int:
        """Position of the first draft token."""
        return self.wanted.base

    def rows(self) -> list[RowSampling]:
        """Return the row parameters of the tokens that are drawn now."""
        state = self.wanted.state
        if self.makes_trees:
            return [state.row(self._tree.way(node)) for node in self._frontier]
        return [state.row([token.token_id for token in self._tokens])]

    def places(self) -> list[Place]:
        """Return where the tokens that are drawn now stand."""
        position = self.base + self._depth
        node = self._depth
        key, cycle = self.opening.noise_key, self.wanted.for_cycle
        return [Place(key, position, node, cycle)] * self.num_drawn

    @property
    def _depth(self) -> int:
        """Draft tokens before those that are drawn now."""
        return self._level if self.makes_trees else len(self._tokens)

    def take(self, proposal: Proposal) -> None:
        """Keep the next token of a chain, and ask for more where more is wanted.

        In RATIO the number was fixed beforehand: what was drawn must not end a draft.
        """
        self.drawn = None
        self._tokens.append(proposal)
        ends = proposal.token_id in self.opening.sampling.stop_token_ids
        is_long = len(self._tokens) >= min(self.num_wanted, self.max_depth)
        if is_long or (ends and self.opening.mode is not Mode.RATIO):
            return
        parent = len(self.forced) + len(self._tokens) - 2
        self.work = Growing(self.state, [parent], [proposal.token_id])

    def take_likely(self, places: Likely) -> None:
        """Keep what is likely behind the nodes of a tree's last level, and go on from the best."""
        self.drawn = None
        above = [self._tree.scores[node] if node >= 0 else 1.0 for node in self._frontier]
        scores = places.shares[:, :MAX_LEVEL_WIDTH] * np.array(above)[:, None]  # [F, W]
        # Of a level no more than are wanted in all can be among the likeliest.
        order = np.argsort(-scores, axis=None, kind="stable")[: self.num_wanted]
        parents, ranks = np.unravel_index(order, scores.shape)
        ids = places.ids[parents, ranks].tolist()
        level = [
            self._tree.add(token_id, self._frontier[parent], score)
            for token_id, parent, score in zip(
                ids, parents.tolist(), scores[parents, ranks].tolist(), strict=True
            )
            if score > 0
        ]
        self._level += 1
        self._grow(level)

    def _grow(self, level: Sequence[int]) -> None:
        """Go on from the likeliest nodes of a level, likeliest first, while that promises enough.

        A node whose children cannot be among the kept is not gone on from, nor one that ends the
        text.
        """
        scores = self._tree.scores
        if self._level >= min(MAX_TREE_DEPTH, self.max_depth):
            return
        ordered = sorted(scores, reverse=True)
        least = ordered[self.num_wanted - 1] if len(ordered) >= self.num_wanted else 0.0
        stops = self.opening.sampling.stop_token_ids
        frontier = [
            node
            for node in level[:MAX_LEVEL_WIDTH]
            if scores[node] > least and self._tree.token_ids[node] not in stops
        ]
        if not frontier or sum(scores[n] for n in frontier) < least_promise(self.num_wanted):
            return
        self._frontier = frontier
        parents = [self._head_node(self._tree.parents[node]) for node in frontier]
        for node in frontier:
            self._node_of[node] = len(self.forced) + len(self._node_of)
        self.work = Growing(self.state, parents, [self._tree.token_ids[node] for node in frontier])

    def _head_node(self, tree_node: int) -> int:
        return self._node_of[tree_node] if tree_node >= 0 else len(self.forced) - 1

    def block(self) -> Block:
        """Return the proposal."""
        if self.makes_trees:
            tree = self._tree.best(self.num_wanted)
            draft = Draft(tuple(tree.token_ids), self.source, parents=tuple(tree.parents))
            return Block((), draft, self.compute_ms, tuple(tree.scores))
        listed = [each.distribution for each in self._tokens if each.distribution is not None]
        draft = Draft(
            token_ids=tuple(each.token_id for each in self._tokens),
            source=self.source,
            distributions=tuple(listed),
            logit_margins=tuple(each.logit_margin for each in self._tokens),
        )
        return Block((), draft, self.compute_ms)
