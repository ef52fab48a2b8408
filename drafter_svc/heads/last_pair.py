"""Medusa and ReDrafter heads at work: they read the last pair only."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import nn

from drafter_svc.heads.work import HeadState, Reading, Work
from outrider.heads.medusa import MedusaHead
from outrider.heads.redrafter import ReDrafterHead


@dataclass(slots=True)
class LastPairState:
    """What is kept of one sequence: what the last pair gave, and the draft nodes behind it.

    ``node_depths``: tokens on the way from the last pair to each node, itself included.
    """

    num_pairs: int = 0
    root_logits: torch.Tensor | None = None
    hidden: torch.Tensor | None = None
    """ReDrafter: the target's hidden state [H]."""
    memory: torch.Tensor | None = None
    """ReDrafter: the recurrent state behind the pair [S]; Medusa: logits of all heads [N, D]."""
    node_depths: list[int] = field(default_factory=list)
    node_memories: list[torch.Tensor] = field(default_factory=list)
    """ReDrafter: the recurrent state at every node."""

    def truncate(self, num_pairs: int) -> None:
        """Forget the pairs from there on; then the last is none that was read."""
        self.drop_nodes()
        if num_pairs < self.num_pairs:
            self.num_pairs, self.root_logits = num_pairs, None
            self.hidden = self.memory = None

    def adopt(self, other: HeadState, num_pairs: int) -> None:
        """Count pairs as read; the next reading brings a last one."""
        self.truncate(0)
        self.num_pairs = num_pairs

    def drop_nodes(self) -> None:
        """Forget all draft nodes."""
        self.node_depths.clear()
        self.node_memories.clear()

    def depths_below(self, parents: Sequence[int]) -> list[int]:
        """Return the depths of new nodes."""
        return [self.node_depths[p] + 1 if p >= 0 else 1 for p in parents]


class MedusaAtWork:
    """Every head says one place, whatever was drafted before it (Cai et al. 2024,
    arXiv:2401.10774)."""

    def __init__(self, head: MedusaHead, logits: Sequence[nn.Linear]) -> None:
        self._head, self._logits = head, logits
        weight = logits[0].weight
        self._dtype, self._device = weight.dtype, weight.device
        self.reach: int | None = head.config.num_heads

    def open(self) -> LastPairState:
        """Return the state of a new sequence."""
        return LastPairState()

    def forward(self, works: Sequence[Work]) -> torch.Tensor:
        """Do all works; nodes cost nothing, their logits are there since the pair was read."""
        reading = [work for work in works if isinstance(work, Reading)]
        if reading:
            self._read(reading)
        rows: list[torch.Tensor] = []
        for work in works:
            state: LastPairState = work.state  # type: ignore[assignment]
            assert state.memory is not None
            if isinstance(work, Reading):
                rows.append(state.memory[:1])
                continue
            depths = state.depths_below(work.parents)
            state.node_depths += depths
            rows.append(state.memory[depths])
        return torch.cat(rows)

    def _read(self, works: Sequence[Reading]) -> None:
        last = torch.stack([work.features[-1] for work in works]).to(self._device, self._dtype)
        outs = self._head(last)  # [n, N, H]
        per_head = [
            self._logits[min(index, len(self._logits) - 1)](outs[:, index].contiguous()).float()
            for index in range(outs.shape[1])
        ]
        logits = torch.stack(per_head, dim=1)  # [n, N, D]
        for work, memory in zip(works, logits, strict=True):
            state: LastPairState = work.state  # type: ignore[assignment]
            state.num_pairs += len(work.token_ids)
            state.memory = memory


class ReDrafterAtWork:
    """A recurrent state goes on from token to token (Cheng et al. 2024, arXiv:2403.09919)."""

    def __init__(self, head: ReDrafterHead, embeddings: nn.Embedding, logits: nn.Linear) -> None:
        self._head, self._embeddings, self._logits = head, embeddings, logits
        self._dtype, self._device = logits.weight.dtype, logits.weight.device
        self.reach: int | None = None

    def open(self) -> LastPairState:
        """Return the state of a new sequence."""
        return LastPairState()

    def forward(self, works: Sequence[Work]) -> torch.Tensor:
        """Do all works, rows of all sequences at once."""
        starts = [work for work in works if isinstance(work, Reading)]
        for work in starts:
            self._read(work)
        if starts:
            begun = self._head.start(self._embed([work.token_ids[-1] for work in starts]))
            for work, memory in zip(starts, begun, strict=True):
                work.state.memory = memory  # type: ignore[attr-defined]
        grown = [work for work in works if not isinstance(work, Reading) and work.token_ids]
        if grown:
            before = torch.stack([memory for work in grown for memory in _before(work)])
            ids = [token_id for work in grown for token_id in work.token_ids]
            self._add(grown, self._head.step(before, self._embed(ids)))
        hidden, memories = [], []
        for each in works:
            state: LastPairState = each.state  # type: ignore[assignment]
            assert state.memory is not None
            assert state.hidden is not None
            count = 1 if isinstance(each, Reading) else len(each.token_ids)
            own = [state.memory] if isinstance(each, Reading) else state.node_memories[-count:]
            memories += own
            hidden += [state.hidden] * count
        out = self._head.out(torch.stack(hidden), torch.stack(memories))
        logits: torch.Tensor = self._logits(out)
        return logits.float()

    def _embed(self, token_ids: Sequence[int]) -> torch.Tensor:
        embedded: torch.Tensor = self._embeddings(torch.tensor(token_ids, device=self._device))
        return embedded

    def _read(self, work: Reading) -> None:
        state: LastPairState = work.state  # type: ignore[assignment]
        state.num_pairs += len(work.token_ids)
        state.hidden = work.features[-1].to(self._device, self._dtype)

    def _add(self, works: Sequence[Work], memories: torch.Tensor) -> None:
        begin = 0
        for work in works:
            state: LastPairState = work.state  # type: ignore[assignment]
            assert not isinstance(work, Reading)
            state.node_depths += state.depths_below(work.parents)
            state.node_memories += memories[begin : begin + len(work.token_ids)].unbind()
            begin += len(work.token_ids)


def _before(work: Work) -> list[torch.Tensor]:
    """Return the recurrent states that new nodes go on from."""
    assert not isinstance(work, Reading)
    state: LastPairState = work.state  # type: ignore[assignment]
    assert state.memory is not None
    return [state.node_memories[p] if p >= 0 else state.memory for p in work.parents]
