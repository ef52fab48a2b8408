"""One pass as the model sees it: which rows belong to which sequence and where their KV goes."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from outrider.engine.cache import SequenceCache


@dataclass(frozen=True, slots=True)
class Slice:
    """The rows that one sequence feeds in a pass: positions [past, past + len(token_ids)).

    Logits are computed for the last ``num_logit_rows`` of them. Blocks are reserved.
    """

    cache: SequenceCache
    token_ids: Sequence[int]
    num_logit_rows: int


@dataclass(frozen=True, slots=True)
class StepPlan:
    """The immutable description of one packed pass over n sequences and T rows.

    Shapes: input_ids, position_ids [1, T] int64; slots [T] int64 (block * block_size + offset);
    starts [n + 1], past [n], tables [n, longest table] int32; logit_rows [R] int64; block_tables as
    tables, int64 on the device: a copy per layer and sequence would wait for the GPU each time.
    """

    input_ids: torch.Tensor
    position_ids: torch.Tensor
    slots: torch.Tensor
    starts: np.ndarray
    past: np.ndarray
    tables: np.ndarray
    logit_rows: torch.Tensor
    block_tables: torch.Tensor

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
        ids: list[int] = []
        positions: list[int] = []
        slots: list[int] = []
        logit_rows: list[int] = []
        starts = np.zeros(len(slices) + 1, dtype=np.int32)
        past = np.zeros(len(slices), dtype=np.int32)
        width = max(len(part.cache.table) for part in slices)
        tables = np.zeros((len(slices), width), dtype=np.int32)
        for index, part in enumerate(slices):
            table, begin = part.cache.table, part.cache.length
            end = begin + len(part.token_ids)
            if begin == end or end > len(table) * block_size:
                raise ValueError("a slice is empty or has no blocks for its rows")
            ids.extend(part.token_ids)
            positions.extend(range(begin, end))
            slots.extend(
                table[p // block_size] * block_size + p % block_size for p in range(begin, end)
            )
            logit_rows.extend(range(len(ids) - part.num_logit_rows, len(ids)))
            starts[index + 1] = len(ids)
            past[index] = begin
            tables[index, : len(table)] = table
        return cls(
            input_ids=torch.tensor([ids], device=device),
            position_ids=torch.tensor([positions], device=device),
            slots=torch.tensor(slots, device=device),
            starts=starts,
            past=past,
            tables=tables,
            logit_rows=torch.tensor(logit_rows, dtype=torch.int64, device=device),
            block_tables=torch.as_tensor(tables.astype(np.int64), device=device),
        )
