"""What a request's speculation looks like, and why."""

from dataclasses import dataclass, replace
from typing import Literal, Protocol

from orchestrator.outcome_count import OutcomeLimit
from outrider import sources
from outrider.errors import InvalidField
from outrider.sampling import MAX_TRACED_IDS, AcceptanceRule

ON = "on"


@dataclass(frozen=True, slots=True)
class SpeculationOptions:
    """What the client asked for; empty means as the policy says."""

    target_only: bool = False
    sources: tuple[str, ...] = ()
    num_draft_tokens: int | None = None
    rule: AcceptanceRule | None = None
    num_traced_ids: int = 0


class LengthSchedule(Protocol):
    """Draft tokens by cycle."""

    def __call__(self, cycle: int) -> int: ...


@dataclass(frozen=True, slots=True)
class AutoLength:
    """As many draft tokens as promise the most, chosen cycle by cycle up to a limit."""

    max_draft_tokens: int


@dataclass(frozen=True, slots=True)
class SpeculationPlan:
    """How the decode loop speculates on one sequence.

    ``sources`` in order of preference, empty for the drafter's own default; ``draft_wait_s`` bounds
    how long a verification may wait for a draft; ``lookup`` allows the orchestrator's own lookup
    where no draft is there; ``num_traced_ids`` ids are reported per row, 0 for no trace;
    ``max_outcomes`` of a verification are prepared while it is in flight.
    """

    sources: tuple[str, ...]
    num_draft_tokens: LengthSchedule | AutoLength
    draft_wait_s: float
    lookup: bool
    decision: str
    rule: AcceptanceRule = AcceptanceRule.COUPLED
    num_traced_ids: int = 0
    max_outcomes: OutcomeLimit = 1

    @property
    def speculates(self) -> bool:
        """False for target-only."""
        return self.decision == ON

    @property
    def uses_drafts_whole(self) -> bool:
        """True where leaving tokens of a draft out could change the law."""
        return self.rule is not AcceptanceRule.COUPLED


@dataclass(frozen=True, slots=True)
class ConstantLength:
    """The same number of draft tokens in every cycle."""

    num_draft_tokens: int

    def __call__(self, cycle: int) -> int:
        """Return the number."""
        return self.num_draft_tokens


@dataclass(frozen=True, slots=True)
class Policy:
    """The operator's rules for all requests."""

    sources: tuple[str, ...] = ()
    num_draft_tokens: int | Literal["auto"] = "auto"
    max_draft_tokens: int = 32
    draft_wait_s: float = 0.1
    lookup_on_miss: bool = True
    rule: AcceptanceRule = AcceptanceRule.COUPLED
    max_outcomes: OutcomeLimit = 1

    def plan(self, options: SpeculationOptions) -> SpeculationPlan:
        """Return the plan of one request.

        Raises: InvalidField if the asked-for draft length is out of range or contradicts
            target_only, or the trace is too long.
        """
        if options.num_traced_ids > MAX_TRACED_IDS:
            raise InvalidField(
                "speculation.trace_top_ids",
                f"{options.num_traced_ids} is outside [0, {MAX_TRACED_IDS}]",
            )
        return replace(
            self._plan(options),
            rule=options.rule or self.rule,
            num_traced_ids=options.num_traced_ids,
            max_outcomes=self.max_outcomes,
        )

    def _plan(self, options: SpeculationOptions) -> SpeculationPlan:
        wanted = options.num_draft_tokens
        if options.target_only:
            if options.sources or wanted is not None:
                raise InvalidField(
                    "speculation.target_only", "excludes sources and num_draft_tokens"
                )
            return SpeculationPlan((), ConstantLength(0), 0.0, False, "target_only_requested")
        if wanted is not None and not 1 <= wanted <= self.max_draft_tokens:
            raise InvalidField(
                "speculation.num_draft_tokens", f"{wanted} is outside [1, {self.max_draft_tokens}]"
            )
        wanted_sources = options.sources or self.sources
        length = self._length(wanted)
        if length == ConstantLength(0):
            return SpeculationPlan((), ConstantLength(0), 0.0, False, "policy_target_only")
        # A client that names its sources gets those and nothing else.
        lookup = self.lookup_on_miss if not options.sources else sources.NGRAM in options.sources
        return SpeculationPlan(wanted_sources, length, self.draft_wait_s, lookup, ON)

    def _length(self, wanted: int | None) -> ConstantLength | AutoLength:
        """Return what the client asked for, exactly, or else what the policy says."""
        length = self.num_draft_tokens if wanted is None else wanted
        return AutoLength(self.max_draft_tokens) if length == "auto" else ConstantLength(length)
