"""Which requests speculate, and how: a policy file, its rules, and decisions with their reasons."""

from outrider.policy.decision import ON, SHADOW, Decision, decide
from outrider.policy.file import parse_policy, read_policy
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
    "features_of",
    "parse_policy",
    "read_policy",
]
