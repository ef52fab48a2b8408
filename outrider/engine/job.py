"""What services ask of the engine, and what they get back."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch

from outrider.engine.cache import SequenceCache
from outrider.tree import TreeLayout


@dataclass(frozen=True, slots=True)
class JobInput:
    """The sequence holds exactly ``token_ids`` from position ``start`` on.

    Logits are wanted for the last ``num_logit_rows`` of them; positions before ``committed`` are
    final, the rest are draft rows. With a ``tree`` the last of the ids are its nodes: each stands
    behind its parent and sees nothing of the tree but its ancestors; logits come in node order.
    ``taps`` are layers whose hidden states are wanted of every row that is computed: what enters
    decoder layer i, or for the number of layers what leaves the final norm.
    """

    start: int
    token_ids: Sequence[int]
    num_logit_rows: int
    committed: int
    tree: TreeLayout | None = None
    taps: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.start < 0 or not self.token_ids:
            raise ValueError("a job feeds at least one token from a position >= 0 on")
        if not 0 <= self.num_logit_rows <= len(self.token_ids):
            raise ValueError(f"num_logit_rows must be in [0, {len(self.token_ids)}]")
        if self.tree is not None and not 0 < len(self.tree.parents) < len(self.token_ids):
            raise ValueError("a tree has nodes, and follows at least one token")

    @property
    def end(self) -> int:
        """Position behind the last id, were they all in a row."""
        return self.start + len(self.token_ids)

    @property
    def base(self) -> int:
        """Position behind the last id that is no node of the tree."""
        return self.end if self.tree is None else self.end - len(self.tree.parents)

    @property
    def path_ids(self) -> list[list[int]]:
        """The ids along every path of the tree."""
        if self.tree is None:
            return []
        nodes = self.token_ids[self.base - self.start :]
        return [[nodes[node] for node in path.nodes] for path in self.tree.paths]

    @property
    def reach(self) -> int:
        """Position behind the last one that the sequence's own blocks hold."""
        return self.base + len(self.tree.paths[0].nodes) if self.tree else self.end


class Job(Protocol):
    """One Step or Advance of a sequence. All of it runs on the engine's thread."""

    cache: SequenceCache
    priority: int
    """Lower runs first."""
    done: bool
    next: JobInput | None
    """Set by the head to feed more before the job is done."""

    def start(self) -> JobInput:
        """The job's first input; called once, just before its first pass."""


@dataclass(frozen=True, slots=True)
class Finished:
    """A job whose input went through completely.

    Shapes: logits [num_logit_rows, V] float32; features [rows, taps, hidden] bfloat16 of all rows
        from ``first_position`` on, nodes of a tree in node order, None without taps; both on the
        model's device.
    """

    job: Job
    logits: torch.Tensor
    passes: int
    queue_ms: float
    compute_ms: float
    rows_in_pass: int
    cached_tokens: int
    features: torch.Tensor | None = None

    @property
    def first_position(self) -> int:
        """Position of the first row that was computed; the cache held all before it."""
        return self.cached_tokens


class Head(Protocol):
    """Decides what a pass means. Called on the engine's thread, once per pass.

    It sets ``job.done`` or ``job.next`` of every finished job; it may truncate and commit caches.
    """

    def __call__(self, finished: list[Finished]) -> None: ...


def stacked_logits(finished: Sequence[Finished]) -> torch.Tensor:
    """The logits of all jobs in one tensor, without a copy where they came from one pass.

    Shapes: [sum of num_logit_rows, V] float32.
    """
    parts = [item.logits for item in finished]
    base = parts[0]
    offset = base.storage_offset()
    for part in parts:
        same = part.untyped_storage().data_ptr() == base.untyped_storage().data_ptr()
        if not same or part.storage_offset() != offset or not part.is_contiguous():
            return torch.cat(parts)
        offset += part.numel()
    rows = sum(part.shape[0] for part in parts)
    return base.as_strided((rows, base.shape[1]), (base.shape[1], 1), base.storage_offset())
