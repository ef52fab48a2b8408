"""Why a request is decided on as it is, rule by rule, for people."""

from collections.abc import Iterator
from dataclasses import dataclass

from outrider.errors import InvalidField
from outrider.policy.decision import Decision, decide
from outrider.policy.options import SpeculationOptions
from outrider.policy.rules import Condition, conditions
from outrider.policy.schema import Policy, Speculation
from outrider.policy.traits import Traits


@dataclass(frozen=True, slots=True)
class Test:
    """A class that was looked at; ``holds`` is None where something is not known."""

    class_name: str
    conditions: tuple[Condition, ...]

    @property
    def holds(self) -> bool | None:
        """Whether the class takes the request."""
        found = [condition.holds for condition in self.conditions]
        if False in found:
            return False
        return None if None in found else True


@dataclass(frozen=True, slots=True)
class Explanation:
    """The classes up to the one that took the request, and what became of it.

    ``obstacle`` says why there is no decision: something is not known, or the request is refused.
    """

    tests: tuple[Test, ...]
    decision: Decision | None
    obstacle: str = ""
    hangs_on_id: bool = False
    """Whether the request is judged is drawn by a request id that was not given."""

    @property
    def lines(self) -> Iterator[str]:
        """Yield the explanation, a line for each step."""
        for test in self.tests:
            answer = {True: "yes", False: "no", None: "not known"}[test.holds]
            about = "; ".join(map(_in_words, test.conditions)) or "takes every request"
            yield f"class {test.class_name}: {answer}: {about}"
        if self.decision is None:
            yield f"no decision: {self.obstacle}"
            return
        yield from _outcome(self.decision)
        if self.hangs_on_id:
            yield "whether it is shadowed is drawn by its request id, which was not given"


def explain(
    policy: Policy, traits: Traits, options: SpeculationOptions, request_id: str
) -> Explanation:
    """Return the explanation of one request; an empty request id is one that is not known."""
    tests = []
    for each in policy.classes:
        tests.append(Test(each.name, tuple(conditions(each.when, traits))))
        if tests[-1].holds is not False:
            break
    try:
        decision = decide(policy, traits, options, request_id)
    except InvalidField as error:
        return Explanation(tuple(tests), None, str(error))
    chosen = decision.workload_class
    drawn = decision.reason in ("shadow", "outside_shadow_share") and not request_id
    partly = chosen is not None and 0 < chosen.shadow.share < 1
    return Explanation(tuple(tests), decision, hangs_on_id=drawn and partly)


def _in_words(condition: Condition) -> str:
    if condition.holds:
        return f"{condition.key} is {condition.found}"
    return f"{condition.key} is {condition.found}, must be {condition.wanted}"


def _outcome(decision: Decision) -> Iterator[str]:
    yield f"speculation: {decision.speculation.value} ({decision.reason})"
    if decision.narrowed:
        yield f"not as the request asked: {', '.join(decision.narrowed)}"
    yield f"acceptance rule of sampled tokens: {decision.rule.value}"
    chosen = decision.workload_class
    if decision.speculation is Speculation.OFF or chosen is None:
        return
    yield f"sources: {', '.join(decision.sources) or 'the drafter chooses'}"
    yield f"drafters: {', '.join(chosen.drafters) or 'any'}"
    yield f"lookup in the orchestrator: {'yes' if decision.lookup else 'no'}"
    if decision.length == "auto":
        bounds = f"{decision.min_draft_tokens} to {decision.max_draft_tokens}"
        yield f"draft tokens: chosen cycle by cycle, {bounds} where any"
    else:
        yield f"draft tokens: {decision.length}"
    yield f"wait for drafts: up to {chosen.draft_wait_ms:g} ms; outcomes: {chosen.max_outcomes}"
    if chosen.min_agreement is not None:
        limits = chosen.min_agreement
        rates = f"below {limits.rate:g} of draft tokens accepted, back from {limits.resume_rate:g}"
        yield f"stops {rates}"
    after = chosen.fallbacks
    low, errors = after.low_agreement.value, after.errors.value
    yield f"then: low agreement {low}, errors {errors}"
