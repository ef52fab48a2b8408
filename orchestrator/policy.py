"""What a policy's decision about a request means for its decode loop."""

from dataclasses import dataclass
from typing import Protocol

from orchestrator.outcome_count import OutcomeLimit
from outrider.policy import (
    ON,
    SHADOW,
    UNCLASSIFIED,
    Decision,
    Fallbacks,
    MinAgreement,
    PressureLimits,
    Shadow,
    Speculation,
)
from outrider.sampling import AcceptanceRule
from outrider.sources import LOOKUP


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
    ``max_outcomes`` of a verification are prepared while it is in flight; ``drafters`` by place or
    address, empty for any.
    """

    sources: tuple[str, ...]
    num_draft_tokens: LengthSchedule | AutoLength
    draft_wait_s: float
    lookup: bool
    decision: str
    rule: AcceptanceRule = AcceptanceRule.COUPLED
    num_traced_ids: int = 0
    max_outcomes: OutcomeLimit = 1
    drafters: tuple[str, ...] = ()
    class_name: str = UNCLASSIFIED
    pressure: PressureLimits | None = None
    """None: the usual limits where lengths are chosen, none where they are fixed."""
    min_agreement: MinAgreement | None = None
    shadow: Shadow = Shadow()
    fallbacks: Fallbacks = Fallbacks()

    @property
    def speculates(self) -> bool:
        """False for target-only, and where drafts are only judged."""
        return self.decision == ON

    @property
    def asks_drafters(self) -> bool:
        """False where the orchestrator's own lookup is preferred to all drafters."""
        return self.sources[:1] != (LOOKUP,)

    @property
    def is_shadowed(self) -> bool:
        """True where drafts are made and judged without being used."""
        return self.decision == SHADOW

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


def plan_of(decision: Decision, *, num_traced_ids: int = 0) -> SpeculationPlan:
    """Return the plan that a decision comes to."""
    chosen = decision.workload_class
    if decision.speculation is Speculation.OFF or chosen is None:
        return SpeculationPlan(
            sources=(),
            num_draft_tokens=ConstantLength(0),
            draft_wait_s=0.0,
            lookup=False,
            decision=decision.reason,
            rule=decision.rule,
            num_traced_ids=num_traced_ids,
            class_name=decision.class_name,
        )
    length, most = decision.length, decision.max_draft_tokens
    of_class = chosen.draft_tokens.max
    return SpeculationPlan(
        sources=decision.sources,
        num_draft_tokens=AutoLength(
            most, decision.min_draft_tokens, None if most == of_class else of_class
        )
        if length == "auto"
        else ConstantLength(length),
        draft_wait_s=chosen.draft_wait_ms / 1e3,
        lookup=decision.lookup,
        decision=decision.reason,
        rule=decision.rule,
        num_traced_ids=num_traced_ids,
        max_outcomes=chosen.max_outcomes,
        drafters=chosen.drafters,
        class_name=chosen.name,
        # A request that names a length gets exactly that.
        pressure=None if decision.is_exact else chosen.pressure,
        min_agreement=chosen.min_agreement,
        shadow=chosen.shadow,
        fallbacks=chosen.fallbacks,
    )
