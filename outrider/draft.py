"""A draft as every part of Outrider sees it: ids, and what they were drawn from."""

from dataclasses import dataclass

from outrider.v1 import common_pb2 as pb


@dataclass(frozen=True, slots=True)
class Draft:
    """Tokens proposed for one place in a sequence.

    ``distributions`` holds per token the packed (ids, counts) of ``TokenDistribution``, or is empty
    for point masses; the orchestrator passes them on as opaque bytes. ``logit_margins`` is per
    token or empty. ``parents`` is empty for a chain.
    """

    token_ids: tuple[int, ...] = ()
    source: str = ""
    distributions: tuple[tuple[bytes, bytes], ...] = ()
    logit_margins: tuple[float, ...] = ()
    parents: tuple[int, ...] = ()

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
        )

    def to_proto(self) -> pb.Draft:
        """Return the message."""
        return pb.Draft(
            token_ids=self.token_ids,
            source=self.source,
            distributions=[pb.TokenDistribution(ids=i, counts=c) for i, c in self.distributions],
            logit_margins=self.logit_margins,
            parents=self.parents,
        )

    @classmethod
    def from_proto(cls, message: pb.Draft) -> "Draft":
        """Read a message that ``outrider.wire.validate_draft`` found valid, or that is only passed
        on."""
        return cls(
            token_ids=tuple(message.token_ids),
            source=message.source,
            distributions=tuple((d.ids, d.counts) for d in message.distributions),
            logit_margins=tuple(message.logit_margins),
            parents=tuple(message.parents),
        )


NO_DRAFT = Draft()
