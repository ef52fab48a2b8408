"""The policy of an orchestrator that was given no file: one class, as its settings say."""

from typing import Literal

from outrider.policy.schema import (
    DEFAULT_DRAFT_TOKENS,
    DraftTokens,
    Fallbacks,
    Policy,
    Speculation,
    Unpermitted,
    WorkloadClass,
)
from outrider.sampling import AcceptanceRule

VERSION = "flags"


def policy_of_flags(
    *,
    sources: tuple[str, ...] = (),
    num_draft_tokens: int | Literal["auto"] = "auto",
    max_draft_tokens: int = DEFAULT_DRAFT_TOKENS,
    draft_wait_ms: float = 100.0,
    lookup_on_miss: bool = True,
    rule: AcceptanceRule = AcceptanceRule.COUPLED,
    max_outcomes: int | Literal["auto"] = 1,
) -> Policy:
    """Return the policy; requests may ask for any source, and for no longer drafts."""
    longest = max_draft_tokens
    if num_draft_tokens != "auto":
        longest = max(longest, num_draft_tokens)
    only = WorkloadClass(
        name="default",
        speculation=Speculation.ON,
        sources=sources,
        draft_tokens=DraftTokens(length=num_draft_tokens, max=longest),
        draft_wait_ms=draft_wait_ms,
        lookup=lookup_on_miss,
        acceptance_rule=rule,
        max_outcomes=max_outcomes,
        request_may_choose=("sources", "other_sources", "draft_tokens", "acceptance_rule"),
        fallbacks=Fallbacks(unpermitted_options=Unpermitted.REFUSE),
    )
    return Policy(version=VERSION, classes=(only,))
