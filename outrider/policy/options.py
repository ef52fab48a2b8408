"""What a client asks of speculation."""

from dataclasses import dataclass

from outrider.errors import InvalidField
from outrider.policy.schema import MAX_DRAFT_TOKENS
from outrider.sampling import MAX_TRACED_IDS, AcceptanceRule
from outrider.v1 import generation_pb2 as pb


@dataclass(frozen=True, slots=True)
class SpeculationOptions:
    """The options of one request, checked at birth; empty means as the policy says.

    Raises: InvalidField naming the option and its limit.
    """

    target_only: bool = False
    sources: tuple[str, ...] = ()
    num_draft_tokens: int | None = None
    rule: AcceptanceRule | None = None
    num_traced_ids: int = 0
    min_draft_tokens: int | None = None
    max_draft_tokens: int | None = None

    def __post_init__(self) -> None:
        if self.num_traced_ids > MAX_TRACED_IDS:
            raise _invalid("trace_top_ids", self.num_traced_ids, 0, MAX_TRACED_IDS)
        lengths = ("num_draft_tokens", "min_draft_tokens", "max_draft_tokens")
        given = {name: getattr(self, name) for name in lengths if getattr(self, name) is not None}
        for name, value in given.items():
            if not 1 <= value <= MAX_DRAFT_TOKENS:
                raise _invalid(name, value, 1, MAX_DRAFT_TOKENS)
        if self.target_only and (self.sources or given):
            raise InvalidField(
                "speculation.target_only", "excludes sources and numbers of draft tokens"
            )
        for name in given:
            if name != "num_draft_tokens" and self.num_draft_tokens is not None:
                raise InvalidField(f"speculation.{name}", "excludes num_draft_tokens")
        fewest, most = self.min_draft_tokens, self.max_draft_tokens
        if fewest is not None and most is not None and fewest > most:
            raise InvalidField(
                "speculation.min_draft_tokens", f"{fewest} is above max_draft_tokens, {most}"
            )

    @classmethod
    def from_proto(cls, message: pb.SpeculationOptions) -> "SpeculationOptions":
        """Read a message; Raises: InvalidField."""

        def given(name: str) -> int | None:
            return getattr(message, name) if message.HasField(name) else None

        return cls(
            target_only=message.target_only,
            sources=tuple(message.sources),
            num_draft_tokens=given("num_draft_tokens"),
            rule=AcceptanceRule.from_proto(message.acceptance_rule),
            num_traced_ids=message.trace_top_ids,
            min_draft_tokens=given("min_draft_tokens"),
            max_draft_tokens=given("max_draft_tokens"),
        )

    def to_proto(self) -> pb.SpeculationOptions:
        """Return the message."""
        return pb.SpeculationOptions(
            target_only=self.target_only,
            sources=self.sources,
            num_draft_tokens=self.num_draft_tokens,
            acceptance_rule=None if self.rule is None else self.rule.to_proto(),
            trace_top_ids=self.num_traced_ids,
            min_draft_tokens=self.min_draft_tokens,
            max_draft_tokens=self.max_draft_tokens,
        )


def _invalid(name: str, value: int, low: int, high: int) -> InvalidField:
    return InvalidField(f"speculation.{name}", f"{value} is outside [{low}, {high}]")
