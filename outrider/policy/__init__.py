"""Which requests speculate, and how: a policy file, its rules, and decisions with their reasons."""

from outrider.policy.built_in import policy_of_flags
from outrider.policy.decision import ON, SHADOW, Decision, decide
from outrider.policy.explanation import Explanation, explain
from outrider.policy.file import parse_policy, read_excerpt, read_policy
from outrider.policy.options import SpeculationOptions
from outrider.policy.schema import (
    MAX_PRIORITY,
    UNCLASSIFIED,
    AfterError,
    AfterLowAgreement,
    DraftTokens,
    Fallbacks,
    MinAgreement,
    Policy,
    PressureLimits,
    Shadow,
    Speculation,
    Threshold,
    Unpermitted,
    When,
    WorkloadClass,
)
from outrider.policy.traits import Traits, declared_metadata, features_of

__all__ = [
    "MAX_PRIORITY",
    "ON",
    "SHADOW",
    "UNCLASSIFIED",
    "AfterError",
    "AfterLowAgreement",
    "Decision",
    "Explanation",
    "DraftTokens",
    "Fallbacks",
    "MinAgreement",
    "Policy",
    "PressureLimits",
    "Shadow",
    "Speculation",
    "SpeculationOptions",
    "Threshold",
    "Traits",
    "Unpermitted",
    "When",
    "WorkloadClass",
    "declared_metadata",
    "decide",
    "explain",
    "features_of",
    "parse_policy",
    "policy_of_flags",
    "read_excerpt",
    "read_policy",
]
