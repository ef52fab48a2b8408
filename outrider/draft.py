"""A draft as every part of Outrider sees it: ids, and what they were drawn from."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from outrider.tree import chain_parents
from outrider.v1 import common_pb2 as pb

Value = TypeVar("Value")
MAX_OUTCOMES = 32
"""Outcomes of a pending draft that a drafter may be asked to prepare for."""


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens proposed for one place in a sequence.

    ``distributions`` holds per token the packed (ids, counts) of ``TokenDistribution``, or is empty
    for point masses; the orchestrator passes them on as opaque bytes. ``logit_margins`` is per
    token or empty. ``parents`` is empty for a chain. ``probes`` tells which nodes are verified and
    never accepted, or is empty. ``compute_ms`` is what a drafter says that the draft took.
    """

    token_ids: tuple[int, ...] = ()
    source: str = ""
    distributions: tuple[tuple[bytes, bytes], ...] = ()
    logit_margins: tuple[float, ...] = ()
    parents: tuple[int, ...] = ()
    probes: tuple[bool, ...] = ()
    compute_ms: float = field(default=0.0, compare=False)
    _message: pb.Draft | None = field(default=None, init=False, compare=False, repr=False)
    """What the draft was read from: who only passes it on need not write it again."""

    @property
    def num_proposed(self) -> int:
        """Tokens that may be accepted."""
        return max(0, len(self.token_ids) - sum(self.probes))

    def __len__(self) -> int:
        return len(self.token_ids)

    def head(self, num_tokens: int) -> "Draft":
        """Return the draft cut to its first tokens."""
        if num_tokens >= len(self.token_ids):
            return self
        return Draft(
            token_ids=self.token_ids[:num_tokens],
            source=self.source,
            distributions=self.distributions[:num_tokens],
            logit_margins=self.logit_margins[:num_tokens],
            parents=self.parents[:num_tokens],
            probes=self.probes[:num_tokens],
            compute_ms=self.compute_ms,
        )

    def legal_part(self, is_legal: Sequence[bool]) -> "Draft":
        """Return the draft without the nodes that are not legal.

        Their descendants are none either. Where there are probes, these learn from what is said of
        the very nodes that they were sent with: what is not legal becomes a probe there. Probes are
        never accepted, so they may be anything.
        """
        if all(is_legal):
            return self
        if any(self.probes):
            probes = [p or not ok for p, ok in zip(self.probes, is_legal, strict=True)]
            return replace(self, probes=tuple(probes))
        kept = [node for node, ok in enumerate(is_legal) if ok]
        place = {-1: -1} | {node: index for index, node in enumerate(kept)}
        return Draft(
            token_ids=_at(self.token_ids, kept),
            source=self.source,
            distributions=_at(self.distributions, kept),
            logit_margins=_at(self.logit_margins, kept),
            parents=tuple(place[parent] for parent in _at(self.parents, kept)),
            compute_ms=self.compute_ms,
        )

    def has_path(self, nodes: Sequence[int]) -> bool:
        """True if the nodes are a way through the draft from its beginning."""
        if not self.parents:
            return len(nodes) <= len(self) and tuple(nodes) == tuple(range(len(nodes)))
        parents = self.parents
        known = all(0 <= node < min(len(parents), len(self)) for node in nodes)
        return known and all(
            parents[node] == before for before, node in zip((-1, *nodes), nodes, strict=False)
        )

    def simplest(self) -> "Draft":
        """Return the same valid draft without parents that say it is a chain, or probes that are
        none; with probes a chain is written as a tree."""
        probes = self.probes if any(self.probes) else ()
        chain = chain_parents(len(self))
        parents = self.parents or chain
        if parents == chain and not probes:
            parents = ()
        return replace(self, parents=parents, probes=probes)

    def first_path(self) -> "Draft":
        """Return the chain of the earliest children that may be accepted; of what is no tree,
        nothing."""
        if not self.parents and not self.probes:
            return self
        nodes: list[int] = []
        parents = self.parents or chain_parents(len(self))
        listed = (parents, self.probes, self.distributions, self.logit_margins)
        if all(len(each) in (0, len(self)) for each in listed):  # else the verifier will refuse it
            for node, parent in enumerate(parents):
                is_first = parent == (nodes[-1] if nodes else -1)
                if is_first and not (self.probes and self.probes[node]):
                    nodes.append(node)
        return Draft(
            token_ids=_at(self.token_ids, nodes),
            source=self.source,
            distributions=_at(self.distributions, nodes),
            logit_margins=_at(self.logit_margins, nodes),
            compute_ms=self.compute_ms,
        )

    def to_proto(self) -> pb.Draft:
        """Return the message, which nobody may change."""
        return self._message or pb.Draft(
            token_ids=self.token_ids,
            source=self.source,
            distributions=[pb.TokenDistribution(ids=i, counts=c) for i, c in self.distributions],
            logit_margins=self.logit_margins,
            parents=self.parents,
            probe=self.probes,
        )

    @classmethod
    def from_proto(cls, message: pb.Draft, *, compute_ms: float = 0.0) -> "Draft":
        """Read a message that ``outrider.wire.validate_draft`` found valid, or that is only passed
        on."""
        draft = cls(
            token_ids=tuple(message.token_ids),
            source=message.source,
            distributions=tuple([(d.ids, d.counts) for d in message.distributions]),
            logit_margins=tuple(message.logit_margins),
            parents=tuple(message.parents),
            probes=tuple(message.probe),
            compute_ms=compute_ms,
        )
        object.__setattr__(draft, "_message", message)
        return draft


def _at(values: tuple[Value, ...], nodes: Sequence[int]) -> tuple[Value, ...]:
    """Return what there is of the nodes, if there is anything of any."""
    return tuple(values[node] for node in nodes) if values else ()


NO_DRAFT = Draft()
