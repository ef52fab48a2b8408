"""What a policy file may say, and what it means where it says nothing."""

import hashlib
import json
import re
from datetime import date
from enum import Enum
from functools import cached_property
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from outrider.draft import MAX_OUTCOMES
from outrider.sampling import AcceptanceRule
from outrider.sources import LOOKUP

MAX_DRAFT_TOKENS = 64  # that any policy may allow
DEFAULT_DRAFT_TOKENS = 32
MAX_PRIORITY = 100
MAX_CLASSES = 64
MAX_METADATA_KEYS = 16
MAX_METADATA_CHARACTERS = 256
UNCLASSIFIED = "unclassified"
"""The class of requests that no class of the file takes; they are target-only."""

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
METADATA_KEY = re.compile(r"[a-z][a-z0-9_.-]{0,63}")  # as gRPC and HTTP/2 carry them

Feature = Literal[
    "bad_words",
    "constraint",
    "logit_bias",
    "logprobs",
    "n",
    "penalties",
    "prompt_logprobs",
    "token_masks",
    "tools",
    "trace",
]
"""Parts of a request that a rule may look for."""


class Speculation(Enum):
    """Whether a class of requests speculates."""

    ON = "on"
    OFF = "off"
    SHADOW = "shadow"  # drafts are made and judged, never used


class Unpermitted(Enum):
    """What becomes of a request that asks for more than its class allows."""

    NARROW = "narrow"  # it gets as much as is allowed
    TARGET_ONLY = "target_only"
    REFUSE = "refuse"


class AfterLowAgreement(Enum):
    """What drafts while too few draft tokens of a class are accepted."""

    TARGET_ONLY = "target_only"
    LOOKUP = "lookup"  # the orchestrator's own, for as long as that agrees


class AfterError(Enum):
    """What drafts for a request whose drafter was lost or sent what is invalid."""

    RETRY = "retry"  # a drafter is taken again a second later, lookup goes on meanwhile
    LOOKUP = "lookup"  # no drafter again, lookup goes on
    TARGET_ONLY = "target_only"


class Part(BaseModel):
    """A mapping of the file: unknown keys are refused, nothing is converted."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


def _enum(values: type[Enum]) -> BeforeValidator:
    """Read a name in place of a member; strict models take members alone."""

    def read(value: object) -> object:
        names = [member.value for member in values]
        if isinstance(value, str) and value in names:
            return values(value)
        if isinstance(value, values):
            return value
        raise ValueError(f"must be one of {', '.join(names)}")

    return BeforeValidator(read)


def _listed(value: object) -> object:
    """Read one text as a list of it, and a list as a tuple."""
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


def _distinct(values: tuple[Any, ...]) -> tuple[Any, ...]:
    repeated = [value for value in values if values.count(value) > 1]
    if repeated:
        raise ValueError(f"{repeated[0]} stands there twice")
    return values


def _matching(pattern: re.Pattern[str], about: str) -> AfterValidator:
    def check(value: str) -> str:
        if not pattern.fullmatch(value):
            raise ValueError(f"{about} ({pattern.pattern})")
        return value

    return AfterValidator(check)


def _not_own(value: str) -> str:
    if value == UNCLASSIFIED:
        raise ValueError(f"{UNCLASSIFIED} is the name of what no class takes")
    return value


def _key_of_clients(value: str) -> str:
    if value.startswith("grpc-") or value.endswith("-bin"):
        raise ValueError("keys that begin with grpc- or end with -bin hold no text of clients")
    return value


Name = Annotated[
    str,
    _matching(NAME, "must be a name of letters, digits, _ . - and at most 64 characters"),
    AfterValidator(_not_own),
]
Key = Annotated[
    str,
    _matching(METADATA_KEY, "must be a metadata key in lower case"),
    AfterValidator(_key_of_clients),
]
Text = Annotated[str, Field(min_length=1, max_length=MAX_METADATA_CHARACTERS)]
Texts = Annotated[
    tuple[Text, ...],
    BeforeValidator(_listed),
    Field(max_length=64),
    AfterValidator(_distinct),
]
Whole = Annotated[int, Field(ge=0, le=2**31 - 1)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Share = Annotated[Number, Field(ge=0, le=1)]


class Band(Part):
    """Numbers from ``min`` to ``max``, both included; what is left out is open."""

    min: Number | None = None
    max: Number | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.min is None and self.max is None:
            raise ValueError("min or max must be given")
        if self.min is not None and self.max is not None and self.min > self.max:
            raise ValueError(f"min {self.min:g} is above max {self.max:g}")
        return self


class Temperatures(Band):
    """A band of temperatures."""

    min: Annotated[Number, Field(ge=0, le=100)] | None = None
    max: Annotated[Number, Field(ge=0, le=100)] | None = None


class Tokens(Band):
    """A band of counts of tokens."""

    min: Whole | None = None
    max: Whole | None = None


Priority = Annotated[int, Field(ge=-MAX_PRIORITY, le=MAX_PRIORITY)]


class Priorities(Band):
    """A band of priorities."""

    min: Priority | None = None
    max: Priority | None = None


class When(Part):
    """What a request must be to belong to a class: everything that is named here."""

    metadata: dict[Key, Texts] = {}
    """Keys of the call's metadata, each with the values that will do."""
    models: Texts = ()
    sampling: Literal["greedy", "sampled"] | None = None
    temperature: Temperatures | None = None
    features: dict[Feature, bool] = {}
    """Parts that the request must have, or must not have."""
    prompt_tokens: Tokens | None = None
    max_tokens: Tokens | None = None
    """Of the output: as asked for, or what the context leaves where nothing was."""
    priority: Priorities | None = None

    @field_validator("metadata")
    @classmethod
    def _check_values(cls, metadata: dict[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
        for key, values in metadata.items():
            if not values:
                raise ValueError(f"{key}: at least one value must be given")
        return metadata

    @property
    def takes_all(self) -> bool:
        """True where nothing is asked for."""
        return self == When()


def _short_length(value: object) -> object:
    """Read ``auto`` and a number as the mapping that they stand for."""
    if value == "auto":
        return {}
    if isinstance(value, int) and not isinstance(value, bool):
        fits = 1 <= value <= MAX_DRAFT_TOKENS
        return {"length": value, "max": value} if fits else {"length": value}
    return value


def _auto_or(low: int, high: int) -> BeforeValidator:
    def check(value: object) -> object:
        fits = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
        if not fits and value != "auto":
            raise ValueError(f"must be auto or a number from {low} to {high}")
        return value

    return BeforeValidator(check)


class DraftTokens(Part):
    """Tokens per draft: ``length`` of them, and what a request may ask for.

    ``auto`` takes as many as promise the most, between ``min`` and ``max``; 0 takes none unless the
    request asks for some.
    """

    length: Annotated[int | Literal["auto"], _auto_or(0, MAX_DRAFT_TOKENS)] = "auto"
    min: Annotated[int, Field(ge=1, le=MAX_DRAFT_TOKENS)] = 1
    max: Annotated[int, Field(ge=1, le=MAX_DRAFT_TOKENS)] = DEFAULT_DRAFT_TOKENS

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min {self.min} is above max {self.max}")
        if self.length not in ("auto", 0) and not self.min <= int(self.length) <= self.max:
            raise ValueError(f"length {self.length} is outside [{self.min}, {self.max}]")
        return self


class Threshold(Part):
    """Where drafts are halved, and where they stop."""

    shorten: Annotated[Number, Field(ge=0)]
    stop: Annotated[Number, Field(ge=0)]

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.shorten > self.stop:
            raise ValueError(f"shorten {self.shorten:g} is above stop {self.stop:g}")
        return self


class PressureLimits(Part):
    """When others need the verifier more than long drafts do."""

    # A step that comes during a pass waits for the next one. Where none waits longer than that, at
    # most half of the leases wait at the end of a pass, averaged over verdicts.
    queue_share: Threshold = Threshold(shorten=0.6, stop=0.8)
    """Share of the verifier's leases whose step waits."""
    kv_usage: Threshold = Threshold(shorten=0.9, stop=0.97)
    """Share of the verifier's KV blocks that leases hold."""
    waiting_per_slot: Threshold = Threshold(shorten=1.0, stop=2.0)
    """Requests that wait for a slot, per slot."""
    rows_in_pass: Threshold | None = None
    """Rows of all sequences in a pass, averaged; None: any number."""


class Shadow(Part):
    """How much of a class is judged, where it is shadowed."""

    share: Share = 1.0
    """Share of its requests, drawn by request id; the others are target-only."""
    max_slowdown: Share = 0.02
    """Share by which rows that are only judged may lengthen a pass (``rejection`` and ``block``;
    elsewhere there are none)."""


def _short_rate(value: object) -> object:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return {"rate": value} if is_number else value


class MinAgreement(Part):
    """The acceptance rate below which drafts of a class stop, and where they come back."""

    rate: Annotated[Number, Field(gt=0, le=1)]
    resume: Annotated[Number, Field(gt=0, le=1)] | None = None
    """Rate of the tries from which on drafts are used again; None: a fifth above ``rate``."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.resume is not None and self.resume < self.rate:
            raise ValueError(f"resume {self.resume:g} is below rate {self.rate:g}")
        return self

    @property
    def resume_rate(self) -> float:
        """The rate from which on drafts are used again."""
        return min(1.2 * self.rate, 1.0) if self.resume is None else self.resume


class Fallbacks(Part):
    """What happens where a request cannot be served as it or the class wants."""

    unpermitted_options: Annotated[Unpermitted, _enum(Unpermitted)] = Unpermitted.NARROW
    low_agreement: Annotated[AfterLowAgreement, _enum(AfterLowAgreement)] = (
        AfterLowAgreement.TARGET_ONLY
    )
    errors: Annotated[AfterError, _enum(AfterError)] = AfterError.RETRY


Choosable = Literal["sources", "other_sources", "draft_tokens", "acceptance_rule"]


class WorkloadClass(Part):
    """How the requests of one class speculate."""

    name: Name
    when: When = When()
    speculation: Annotated[Speculation, _enum(Speculation)]
    sources: Texts = ()
    """Draft sources in order of preference; empty: the drafter's own choice; ``lookup`` first: no
    drafter is asked."""
    drafters: Texts = ()
    """Drafters as the orchestrator was told of them, or their addresses; empty: any."""
    lookup: bool = True
    """The orchestrator's own n-gram lookup drafts where no drafter has a draft."""
    draft_tokens: Annotated[DraftTokens, BeforeValidator(_short_length)] = DraftTokens()
    draft_wait_ms: Annotated[Number, Field(ge=0, le=10_000)] = 100.0
    max_outcomes: Annotated[int | Literal["auto"], _auto_or(1, MAX_OUTCOMES)] = 1
    acceptance_rule: Annotated[AcceptanceRule, _enum(AcceptanceRule)] = AcceptanceRule.COUPLED
    request_may_choose: Annotated[tuple[Choosable, ...], BeforeValidator(_listed)] = (
        "sources",
        "draft_tokens",
        "acceptance_rule",
    )
    """Options that a request may set, within the class; turning speculation off it always may."""
    pressure: PressureLimits | None = None
    """None: the limits' own defaults where the length is chosen, no limits where it is fixed."""
    min_agreement: Annotated[MinAgreement, BeforeValidator(_short_rate)] | None = None
    shadow: Shadow = Shadow()
    fallbacks: Fallbacks = Fallbacks()

    @model_validator(mode="after")
    def _check(self) -> Self:
        if LOOKUP in self.sources and not self.lookup:
            raise ValueError(f"lookup is false, but sources name {LOOKUP}")
        return self


def _as_text(value: object) -> object:
    """Read a whole number or a date as it was written."""
    if isinstance(value, float):  # 1.10 would have become 1.1
        raise ValueError("with a dot it must stand in quotes")
    is_plain = isinstance(value, int | date) and not isinstance(value, bool)
    return str(value) if is_plain else value


class Policy(Part):
    """Classes of requests in order: the first that fits decides, and where none does nothing is
    speculated."""

    version: Annotated[str, BeforeValidator(_as_text), Field(min_length=1, max_length=64)]
    """The operator's own name for this state of the file."""
    metadata: Annotated[
        tuple[Key, ...],
        BeforeValidator(_listed),
        Field(max_length=MAX_METADATA_KEYS),
        AfterValidator(_distinct),
    ] = ()
    """Metadata keys that rules may read and receipts show."""
    classes: Annotated[
        tuple[WorkloadClass, ...],
        BeforeValidator(_listed),
        Field(min_length=1, max_length=MAX_CLASSES),
    ]

    @model_validator(mode="after")
    def _check(self) -> Self:
        seen: dict[str, int] = {}
        for index, each in enumerate(self.classes):
            where = f"classes[{index}]"
            if each.name in seen:
                raise ValueError(f"{where}.name: {each.name} is also classes[{seen[each.name]}]")
            if index and self.classes[index - 1].when.takes_all:
                before = self.classes[index - 1].name
                raise ValueError(f"{where}: is never reached, since {before} takes every request")
            for key in each.when.metadata:
                if key not in self.metadata:
                    told = f"{where}.when.metadata.{key}"
                    raise ValueError(f"{told}: the key is not declared under metadata")
            seen[each.name] = index
        return self

    @cached_property
    def digest(self) -> str:
        """16 hexadecimal digits that change with whatever the policy says."""
        text = _canonical(self.model_dump(mode="json"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @cached_property
    def excerpts(self) -> tuple[str, ...]:
        """For each class, and last for requests of none, the JSON from which alone a decision can
        be made again: a policy of the classes up to there, the last one in full.
        """
        rules = [
            each.model_dump(
                mode="json", exclude_defaults=True, include={"name", "when", "speculation"}
            )
            for each in self.classes
        ]
        head = {"version": self.version, "metadata": self.metadata}
        found = [
            _canonical(head | {"classes": [*rules[:index], each.model_dump(mode="json")]})
            for index, each in enumerate(self.classes)
        ]
        return (*found, _canonical(head | {"classes": rules}))


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
