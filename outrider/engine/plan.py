"""One pass as the model sees it: which rows belong to which sequence and where their KV goes."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from outrider.engine.cache import SequenceCache
from outrider.tree import TreeLayout


@dataclass(frozen=True, slots=True)
class Slice:
    """The rows that one sequence feeds in a pass: positions [past, past + len(token_ids)).

    Logits are computed for the last ``num_logit_rows`` of them, hidden states of the layers
    ``taps`` are kept of all. The last of the ids are the nodes
    of the ``tree``, if there is one. Blocks are reserved.
    """

    cache: SequenceCache
    token_ids: Sequence[int]
    num_logit_rows: int
    tree: TreeLayout | None = None
    taps: tuple[int, ...] = ()

    @property
    def num_plain(self) -> int:
        """Ids before the tree."""
        return len(self.token_ids) - (len(self.tree.parents) if self.tree else 0)

    @property
    def base(self) -> int:
        """Position of the tree's first nodes."""
        return self.cache.length + self.num_plain

    @property
    def kept_ids(self) -> list[int]:
        """The ids whose KV the sequence's own blocks hold after the pass."""
        ids = list(self.token_ids[: self.num_plain])
        if self.tree is not None:
            ids += [self.token_ids[self.num_plain + node] for node in self.tree.paths[0].nodes]
        return ids


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The immutable description of one packed pass over n sequences and T rows.

    A path of a tree is a sequence of its own here: its rows are the nodes that it owns, its table
    ends in blocks of its own, and those also get the KV of the rows before it that other paths own.
    So a node is computed as it would be in a chain, to the last bit.
    Shapes: input_ids, position_ids [1, T] int64; slots [S] int64 (block * block_size + offset),
    kv_rows [S] int64, the row that goes there, None: S is T and all go in order;
    starts [n + 1], past [n], tables [n, longest table] int32; logit_rows [R] int64; block_tables as
    tables, int64 on the device: a copy per layer and sequence would wait for the GPU each time;
    tapped_rows [rows of slices with taps] int64, slice after slice, None if there are none.
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    slots: torch.Tensor
    starts: np.ndarray
    past: np.ndarray
    tables: np.ndarray
    logit_rows: torch.Tensor
    block_tables: torch.Tensor
    kv_rows: torch.Tensor | None = None
    taps: tuple[int, ...] = ()
    tapped_rows: torch.Tensor | None = None

    @property
    def num_sequences(self) -> int:
        return len(self.past)

    @property
    def num_rows(self) -> int:
        return self.input_ids.shape[1]

    @classmethod
    def build(cls, slices: Sequence[Slice], *, block_size: int, device: torch.device) -> "StepPlan":
        """Lay the slices side by side.

        Raises: ValueError if a slice is empty or its blocks are not reserved.
        """
        layout = _Layout(block_size)
        for part in slices:
            layout.add(part)
        width = max(map(len, layout.tables))
        tables = np.zeros((len(layout.tables), width), dtype=np.int32)
        for index, table in enumerate(layout.tables):
            tables[index, : len(table)] = table
        taps = tuple(sorted({tap for part in slices for tap in part.taps}))
        in_order = layout.kv_rows == list(range(len(layout.ids)))
        return cls(
            input_ids=torch.tensor([layout.ids], device=device),
            position_ids=torch.tensor([layout.positions], device=device),
            slots=torch.tensor(layout.slots, device=device),
            starts=np.array(layout.starts, dtype=np.int32),
            past=np.array(layout.past, dtype=np.int32),
            tables=tables,
            logit_rows=torch.tensor(layout.logit_rows, dtype=torch.int64, device=device),
            block_tables=torch.as_tensor(tables.astype(np.int64), device=device),
            kv_rows=None if in_order else torch.tensor(layout.kv_rows, device=device),
            taps=taps,
            tapped_rows=torch.tensor(layout.tapped_rows, device=device) if taps else None,
        )


@dataclass(slots=True)
class _Layout:
    """A plan in the making."""

    block_size: int
    ids: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    kv_rows: list[int] = field(default_factory=list)
    logit_rows: list[int] = field(default_factory=list)
    tapped_rows: list[int] = field(default_factory=list)
    starts: list[int] = field(default_factory=lambda: [0])
    past: list[int] = field(default_factory=list)
    tables: list[Sequence[int]] = field(default_factory=list)

    def add(self, part: Slice) -> None:
        """Lay one slice behind the others."""
        cache, begin, num_plain = part.cache, part.cache.length, part.num_plain
        if part.tree is None:
            first = self._sequence(part.token_ids, begin, cache.table)
            rows = list(range(first, len(self.ids)))
        else:
            first_block = part.base // self.block_size
            nodes, row_of = part.token_ids[num_plain:], dict[int, int]()
            first_path, *others = part.tree.paths
            ids = [*part.token_ids[:num_plain], *(nodes[node] for node in first_path.owned)]
            first = self._sequence(ids, begin, cache.table)
            rows = list(range(first, first + num_plain))
            for at, node in enumerate(first_path.owned, start=first + num_plain):
                row_of[node] = at
            for path, branch in zip(others, cache.branches, strict=True):
                table = cache.table[:first_block] + branch
                known = [*rows, *(row_of[node] for node in path.nodes[: path.num_shared])]
                for position, row in enumerate(known, start=begin):
                    if position >= first_block * self.block_size:
                        self._store(row, position, table)
                ids = [nodes[node] for node in path.owned]
                at = self._sequence(ids, part.base + path.num_shared, table)
                row_of.update(zip(path.owned, range(at, len(self.ids)), strict=True))
            rows += [row_of[node] for node in range(len(nodes))]
        self.logit_rows.extend(rows[len(rows) - part.num_logit_rows :])
        if part.taps:
            self.tapped_rows.extend(rows)

    def _sequence(self, token_ids: Sequence[int], past: int, table: Sequence[int]) -> int:
        """Add rows from position ``past`` on; return the first."""
        first, end = len(self.ids), past + len(token_ids)
        if past == end or end > len(table) * self.block_size:
            raise ValueError("a slice is empty or has no blocks for its rows")
        self.ids.extend(token_ids)
        self.positions.extend(range(past, end))
        for row, position in enumerate(range(past, end), start=first):
            self._store(row, position, table)
        self.starts.append(len(self.ids))
        self.past.append(past)
        self.tables.append(table)
        return first

    def _store(self, row: int, position: int, table: Sequence[int]) -> None:
        block, offset = divmod(position, self.block_size)
        self.kv_rows.append(row)
        self.slots.append(table[block] * self.block_size + offset)
