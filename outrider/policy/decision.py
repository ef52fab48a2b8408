"""How a request speculates: the first class that fits, and what its options make of that.

A pure function of policy, traits, options and request id: what a receipt holds of them is enough
to decide again.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Literal

from outrider.errors import InvalidField
from outrider.policy.options import SpeculationOptions
from outrider.policy.rules import conditions
from outrider.policy.schema import (
    UNCLASSIFIED,
    Policy,
    Speculation,
    Unpermitted,
    WorkloadClass,
)
from outrider.policy.traits import Traits
from outrider.sampling import AcceptanceRule
from outrider.sources import LOOKUP, NGRAM

ON = "on"
SHADOW = "shadow"


@dataclass(frozen=True, slots=True)
class Decision:
    """How one request speculates.

    ``speculation`` is what the request gets, not what its class says; ``reason`` why, one of a
    closed set of words; ``narrowed`` names the options that the class did not allow as they were.
    """

    policy: Policy
    class_index: int | None
    """None: no class took the request."""
    speculation: Speculation
    reason: str
    rule: AcceptanceRule
    sources: tuple[str, ...] = ()
    length: int | Literal["auto"] = 0
    min_draft_tokens: int = 1
    max_draft_tokens: int = 0
    """Both bound lengths that are chosen."""
    is_exact: bool = False
    """The request named the length."""
    lookup: bool = False
    narrowed: tuple[str, ...] = ()

    @property
    def workload_class(self) -> WorkloadClass | None:
        """The class that took the request."""
        return None if self.class_index is None else self.policy.classes[self.class_index]

    @property
    def class_name(self) -> str:
        """Its name."""
        return self.workload_class.name if self.workload_class is not None else UNCLASSIFIED

    @property
    def excerpt(self) -> str:
        """The part of the policy from which alone this decision can be made again, as JSON."""
        return self.policy.excerpts[-1 if self.class_index is None else self.class_index]


def classify(policy: Policy, traits: Traits) -> int | None:
    """Return the index of the first class that fits; None if none does.

    Raises: InvalidField where that depends on what is not known.
    """
    for index, each in enumerate(policy.classes):
        if _fits(each, traits):
            return index
    return None


def _fits(workload_class: WorkloadClass, traits: Traits) -> bool:
    for condition in conditions(workload_class.when, traits):
        if condition.holds is None:
            raise InvalidField(condition.key, f"class {workload_class.name} asks for it")
        if not condition.holds:
            return False
    return True


def is_shadowed(request_id: str, share: float) -> bool:
    """Return whether a request is in the share of its class that is judged."""
    digest = blake2b(f"shadow {request_id}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") / 2**64 < share


def decide(
    policy: Policy, traits: Traits, options: SpeculationOptions, request_id: str
) -> Decision:
    """Return how a request speculates.

    Raises: InvalidField for options that its class refuses.
    """
    index = classify(policy, traits)
    if index is None:
        rule = options.rule or AcceptanceRule.COUPLED
        reason = "target_only_requested" if options.target_only else UNCLASSIFIED
        return Decision(policy, None, Speculation.OFF, reason, rule)
    workload_class = policy.classes[index]
    permitted, objections = _permitted(workload_class, options)
    told = workload_class.fallbacks.unpermitted_options
    if objections and told is Unpermitted.REFUSE:
        field, message = next(iter(objections.items()))
        raise InvalidField(f"speculation.{field}", message)
    off = Decision(
        policy,
        index,
        Speculation.OFF,
        "target_only_requested",
        permitted.rule or workload_class.acceptance_rule,
        narrowed=tuple(objections),
    )
    if options.target_only:
        return off
    if objections and told is Unpermitted.TARGET_ONLY:
        return replace(off, reason="unpermitted_option")
    if options.sources and not permitted.sources and "sources" in objections:
        return replace(off, reason="no_permitted_source")
    return _of_class(off, workload_class, permitted, request_id)


def _of_class(
    off: Decision, workload_class: WorkloadClass, options: SpeculationOptions, request_id: str
) -> Decision:
    """Return what the class says to options that it permits."""
    tokens = workload_class.draft_tokens
    fewest = options.min_draft_tokens or tokens.min
    most = options.max_draft_tokens or tokens.max
    wanted = options.num_draft_tokens
    length: int | Literal["auto"] = tokens.length if wanted is None else wanted
    # A range bounds what the class drafts; it does not make it draft.
    if wanted is None and length != "auto" and length:
        length = min(max(length, fewest), most)
    if workload_class.speculation is Speculation.OFF or length == 0:
        return replace(off, reason="policy_target_only")
    reason = ON
    if workload_class.speculation is Speculation.SHADOW:
        if not is_shadowed(request_id, workload_class.shadow.share):
            return replace(off, reason="outside_shadow_share")
        reason = SHADOW
    # A client that names its sources gets those and nothing else.
    asked = {NGRAM, LOOKUP} & set(options.sources)
    lookup = bool(asked) if options.sources else workload_class.lookup
    return replace(
        off,
        speculation=workload_class.speculation,
        reason=reason,
        sources=options.sources or workload_class.sources,
        length=length,
        min_draft_tokens=fewest,
        max_draft_tokens=most,
        is_exact=wanted is not None,
        lookup=lookup,
    )


def _permitted(
    workload_class: WorkloadClass, options: SpeculationOptions
) -> tuple[SpeculationOptions, Mapping[str, str]]:
    """Return the options narrowed to what the class permits, and what it does not, by option."""
    if options.target_only:
        return options, {}
    about = f"of class {workload_class.name}"
    objections: dict[str, str] = {}
    may_choose = workload_class.request_may_choose
    if options.rule is not None and "acceptance_rule" not in may_choose:
        if options.rule is not workload_class.acceptance_rule:
            rule = workload_class.acceptance_rule.value
            objections["acceptance_rule"] = f"{options.rule.value}: the rule {about} is {rule}"
        options = replace(options, rule=None)
    options = _permitted_sources(workload_class, options, objections, about)
    return _permitted_lengths(workload_class, options, objections, about), objections


def _permitted_sources(
    workload_class: WorkloadClass,
    options: SpeculationOptions,
    objections: dict[str, str],
    about: str,
) -> SpeculationOptions:
    listed, may_choose = workload_class.sources, workload_class.request_may_choose
    if not options.sources or "other_sources" in may_choose:
        return options
    if "sources" not in may_choose:
        objections["sources"] = f"are not chosen by requests {about}"
        return replace(options, sources=listed)
    others = [source for source in options.sources if listed and source not in listed]
    if not others:
        return options
    objections["sources"] = f"{', '.join(others)}: those {about} are {', '.join(listed)}"
    kept = tuple(source for source in options.sources if source in listed)
    return replace(options, sources=kept)


def _permitted_lengths(
    workload_class: WorkloadClass,
    options: SpeculationOptions,
    objections: dict[str, str],
    about: str,
) -> SpeculationOptions:
    tokens = workload_class.draft_tokens
    names = ("num_draft_tokens", "min_draft_tokens", "max_draft_tokens")
    asked = {name: getattr(options, name) for name in names if getattr(options, name) is not None}
    if not asked:
        return options
    if "draft_tokens" not in workload_class.request_may_choose:
        objections |= dict.fromkeys(asked, f"is not chosen by requests {about}")
        return replace(options, num_draft_tokens=None, min_draft_tokens=None, max_draft_tokens=None)
    for name, value in asked.items():
        asked[name] = min(max(value, tokens.min), tokens.max)
        if asked[name] != value:
            objections[name] = f"{value} is outside [{tokens.min}, {tokens.max}] {about}"
    return replace(options, **asked)
