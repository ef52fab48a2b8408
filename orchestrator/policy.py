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
    min_draft_tokens: int | None = None
    max_draft_tokens: int | None = None
    rule: AcceptanceRule | None = None
    num_traced_ids: int = 0


class LengthSchedule(Protocol):
    """Draft tokens by cycle."""

    def __call__(self, cycle: int) -> int: ...


@dataclass(frozen=True, slots=True)
class AutoLength:
    """As many draft tokens as promise the most, chosen cycle by cycle up to a limit.

    A cycle that asks for any asks for at least ``min_draft_tokens``. ``policy_max`` is the limit of
    requests that have none of their own; None: the same.
    """

    max_draft_tokens: int
    min_draft_tokens: int = 1
    policy_max: int | None = None


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
    bounds: str = ""
    """The range of draft lengths that the request asked for, in words; empty: none."""

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
            target_only or a range, if the range is none, or if the trace is too long.
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
            lengths = (wanted, options.min_draft_tokens, options.max_draft_tokens)
            if options.sources or any(each is not None for each in lengths):
                raise InvalidField(
                    "speculation.target_only", "excludes sources and numbers of draft tokens"
                )
            return SpeculationPlan((), ConstantLength(0), 0.0, False, "target_only_requested")
        self._check_lengths(options)
        wanted_sources = options.sources or self.sources
        length = self._length(options)
        if length == ConstantLength(0):
            return SpeculationPlan((), ConstantLength(0), 0.0, False, "policy_target_only")
        # A client that names its sources gets those and nothing else.
        lookup = self.lookup_on_miss if not options.sources else sources.NGRAM in options.sources
        bounds = _in_words(options.min_draft_tokens, options.max_draft_tokens)
        return SpeculationPlan(wanted_sources, length, self.draft_wait_s, lookup, ON, bounds=bounds)

    def _check_lengths(self, options: SpeculationOptions) -> None:
        limit = self.max_draft_tokens
        for name in ("num_draft_tokens", "min_draft_tokens", "max_draft_tokens"):
            length = getattr(options, name)
            if length is None:
                continue
            if not 1 <= length <= limit:
                raise InvalidField(f"speculation.{name}", f"{length} is outside [1, {limit}]")
            if name != "num_draft_tokens" and options.num_draft_tokens is not None:
                raise InvalidField(f"speculation.{name}", "excludes num_draft_tokens")
        fewest, most = options.min_draft_tokens, options.max_draft_tokens
        if fewest is not None and most is not None and fewest > most:
            raise InvalidField(
                "speculation.min_draft_tokens", f"{fewest} is above max_draft_tokens, {most}"
            )

    def _length(self, options: SpeculationOptions) -> ConstantLength | AutoLength:
        """Return what the client asked for, exactly, or what the policy says within its range."""
        if options.num_draft_tokens is not None:
            return ConstantLength(options.num_draft_tokens)
        fewest = options.min_draft_tokens or 1
        most = options.max_draft_tokens or self.max_draft_tokens
        if self.num_draft_tokens == "auto":
            of_policy = None if options.max_draft_tokens is None else self.max_draft_tokens
            return AutoLength(most, fewest, of_policy)
        # A range bounds what the policy drafts; it does not make it draft.
        length = self.num_draft_tokens
        return ConstantLength(min(max(length, fewest), most) if length else 0)


def _in_words(fewest: int | None, most: int | None) -> str:
    bounds = ("at least", fewest), ("at most", most)
    asked = " and ".join(f"{word} {number}" for word, number in bounds if number is not None)
    return asked and f"{asked} draft tokens, as the request asked"
