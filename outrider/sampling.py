"""Sampling parameters of a request: ranges, defaults and what is refused by name."""

import enum
import hashlib
import math
from dataclasses import dataclass
from typing import Any

from outrider.errors import InvalidField
from outrider.v1 import common_pb2 as pb
from outrider.v1 import generation_pb2

GREEDY_BELOW = 1e-5  # temperatures below divide logits into infinities; they mean argmax
MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 256
MAX_STOP_TOKEN_IDS = 64
MAX_TRACED_IDS = 64
MAX_LOGPROBS = 64
MAX_CHOICES = 16  # n
MAX_BIASED_IDS = 4096
MAX_BIAS = 100.0
MAX_BAD_WORDS = 64
MAX_CHOICE_TEXTS = 1024
MAX_CONSTRAINT_CHARACTERS = 2**18


class Mode(enum.Enum):
    """How a sequence turns the target's distribution into tokens."""

    GREEDY = pb.MODE_GREEDY
    COUPLED = pb.MODE_COUPLED
    RATIO = pb.MODE_RATIO

    @classmethod
    def from_proto(cls, value: int) -> "Mode":
        """Return the mode; Raises: InvalidField for UNSPECIFIED and unknown values."""
        try:
            return cls(value)
        except ValueError:
            raise InvalidField("mode", f"{value} is not a mode") from None


class AcceptanceRule(enum.Enum):
    """What decides about the draft tokens of a sampled request."""

    COUPLED = "coupled"
    REJECTION = "rejection"
    BLOCK = "block"

    def to_proto(self) -> generation_pb2.AcceptanceRule:
        """Return the value of the message."""
        return _RULES[self]

    @classmethod
    def from_proto(cls, value: int) -> "AcceptanceRule | None":
        """Return the rule, None where it is left open; Raises: InvalidField for unknown values."""
        for rule, number in _RULES.items():
            if number == value:
                return rule
        if value:
            raise InvalidField("speculation.acceptance_rule", f"{value} is not a rule")
        return None


_RULES = {
    AcceptanceRule.COUPLED: generation_pb2.ACCEPTANCE_RULE_COUPLED,
    AcceptanceRule.REJECTION: generation_pb2.ACCEPTANCE_RULE_REJECTION,
    AcceptanceRule.BLOCK: generation_pb2.ACCEPTANCE_RULE_BLOCK,
}


OPTIONAL = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "max_tokens",
    "min_tokens",
    "skip_special_tokens",
    "ignore_eos",
    "n",
    "logprobs",
    "prompt_logprobs",
    "seed",
    "include_stop_str_in_output",
    "truncate_prompt_tokens",
)
REPEATED = ("stop", "stop_token_ids", "allowed_token_ids", "banned_token_ids", "bad_words")
UNFIT_FOR_CONSTRAINTS = (
    "stop",
    "allowed_token_ids",
    "banned_token_ids",
    "bad_words",
    "bad_token_ids",
    "min_tokens",
)
# Parameters of the schema that are refused unless they hold the value that changes nothing.
NOT_BUILT: dict[str, object] = {"spaces_between_special_tokens": True}


class ConstraintKind(enum.Enum):
    """What a constraint is written in; the values are the fields of the message."""

    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    GRAMMAR = "grammar"
    CHOICE = "choice"
    JSON_OBJECT = "json_object"


@dataclass(frozen=True, slots=True)
class Constraint:
    """What the text must satisfy, from behind ``after`` on; checked for size, not for sense.

    ``choices`` are the texts of CHOICE, ``text`` what the other kinds are written as, empty for
    JSON_OBJECT.
    """

    kind: ConstraintKind
    text: str = ""
    choices: tuple[str, ...] = ()
    after: str = ""

    def __post_init__(self) -> None:
        name = self.kind.value
        size = len(self.text) + sum(map(len, self.choices))
        if size > MAX_CONSTRAINT_CHARACTERS:
            raise _invalid(name, f"{size} characters, at most {MAX_CONSTRAINT_CHARACTERS}")
        if self.kind is ConstraintKind.CHOICE:
            if not 1 <= len(self.choices) <= MAX_CHOICE_TEXTS:
                limit = f"must be 1 to {MAX_CHOICE_TEXTS}"
                raise _invalid("choice.choices", f"{len(self.choices)} texts, {limit}")
            if "" in self.choices or len(set(self.choices)) < len(self.choices):
                raise _invalid("choice.choices", "must be distinct and none of them empty")
        elif self.kind is not ConstraintKind.JSON_OBJECT and not self.text:
            raise _invalid(name, "is empty")
        if len(self.after) > MAX_STOP_CHARACTERS:
            limit = f"at most {MAX_STOP_CHARACTERS}"
            raise _invalid("constraint_after", f"{len(self.after)} characters, {limit}")

    @classmethod
    def from_proto(cls, message: pb.SamplingParams) -> "Constraint | None":
        """Read the constraint; Raises: InvalidField for one that is empty or too long."""
        name = message.WhichOneof("constraint")
        if name is None or (name == "json_object" and not message.json_object):
            if message.constraint_after:
                raise _invalid("constraint_after", "there is no constraint that could begin there")
            return None
        kind, after = ConstraintKind(name), message.constraint_after
        if kind is ConstraintKind.CHOICE:
            return cls(kind, choices=tuple(message.choice.choices), after=after)
        text = "" if kind is ConstraintKind.JSON_OBJECT else getattr(message, name)
        return cls(kind, text, after=after)

    def write(self, message: pb.SamplingParams) -> None:
        """Put the constraint into a message."""
        message.constraint_after = self.after
        match self.kind:
            case ConstraintKind.CHOICE:
                message.choice.choices.extend(self.choices)
            case ConstraintKind.JSON_OBJECT:
                message.json_object = True
            case _:
                setattr(message, self.kind.value, self.text)


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the tokens of one request are sampled; checked at birth.

    Raises: InvalidField naming the parameter and its limit.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    repetition_penalty: float = 1.0
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    skip_special_tokens: bool = True
    ignore_eos: bool = False
    seed: int | None = None
    n: int = 1
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    include_stop_str_in_output: bool = False
    truncate_prompt_tokens: int | None = None
    logit_bias: tuple[tuple[int, float], ...] = ()
    """Ids and what is added to their logits."""
    allowed_token_ids: tuple[int, ...] = ()
    banned_token_ids: tuple[int, ...] = ()
    bad_words: tuple[str, ...] = ()
    bad_token_ids: tuple[tuple[int, ...], ...] = ()
    """Sequences of ids whose last is masked where the others stand."""
    constraint: Constraint | None = None

    def __post_init__(self) -> None:
        _in_range("temperature", self.temperature, 0.0, 100.0)
        _in_range("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _in_range("top_k", self.top_k, -1, 2**31 - 1)
        _in_range("min_p", self.min_p, 0.0, 1.0)
        _in_range("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _in_range("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _in_range("repetition_penalty", self.repetition_penalty, 0.0, 2.0, open_low=True)
        _in_range("n", self.n, 1, MAX_CHOICES)
        for name in ("logprobs", "prompt_logprobs"):
            if getattr(self, name) is not None:
                _in_range(name, getattr(self, name), 0, MAX_LOGPROBS)
        if self.truncate_prompt_tokens is not None:
            _in_range("truncate_prompt_tokens", self.truncate_prompt_tokens, 1, 2**31 - 1)
        self._check_ids()
        if self.max_tokens is not None:
            _in_range("max_tokens", self.max_tokens, 1, 2**31 - 1)
            _in_range("min_tokens", self.min_tokens, 0, self.max_tokens)
        _in_range("min_tokens", self.min_tokens, 0, 2**31 - 1)
        if self.seed is not None:
            _in_range("seed", self.seed, -(2**63), 2**63 - 1)
        if len(self.stop) > MAX_STOP_STRINGS:
            raise _invalid("stop", f"{len(self.stop)} strings, at most {MAX_STOP_STRINGS}")
        for index, text in enumerate(self.stop):
            if not 1 <= len(text) <= MAX_STOP_CHARACTERS:
                limit = f"must have 1 to {MAX_STOP_CHARACTERS} characters"
                raise _invalid(f"stop[{index}]", f"{len(text)} characters, {limit}")
        if len(self.stop_token_ids) > MAX_STOP_TOKEN_IDS:
            count = len(self.stop_token_ids)
            raise _invalid("stop_token_ids", f"{count} ids, at most {MAX_STOP_TOKEN_IDS}")
        if self.constraint is not None:
            self._check_that_it_can_be_satisfied()

    def _check_ids(self) -> None:
        if len(self.logit_bias) > MAX_BIASED_IDS:
            limit = f"at most {MAX_BIASED_IDS}"
            raise _invalid("logit_bias", f"{len(self.logit_bias)} ids, {limit}")
        for token_id, value in self.logit_bias:
            _in_range(f"logit_bias[{token_id}]", value, -MAX_BIAS, MAX_BIAS)
        if len(self.bad_words) > MAX_BAD_WORDS:
            raise _invalid("bad_words", f"{len(self.bad_words)} texts, at most {MAX_BAD_WORDS}")
        for index, text in enumerate(self.bad_words):
            if not 1 <= len(text) <= MAX_STOP_CHARACTERS:
                limit = f"must have 1 to {MAX_STOP_CHARACTERS} characters"
                raise _invalid(f"bad_words[{index}]", f"{len(text)} characters, {limit}")
        if len(self.bad_token_ids) > 4 * MAX_BAD_WORDS:
            limit = f"at most {4 * MAX_BAD_WORDS}"
            raise _invalid("bad_token_ids", f"{len(self.bad_token_ids)} sequences, {limit}")
        if () in self.bad_token_ids:
            raise _invalid(f"bad_token_ids[{self.bad_token_ids.index(())}]", "is empty")

    def _check_that_it_can_be_satisfied(self) -> None:
        """Refuse what may forbid the only id that a constraint leaves, or cut its text short."""
        for name in UNFIT_FOR_CONSTRAINTS:
            if getattr(self, name):
                raise _invalid(name, "cannot be promised together with a constraint")

    @property
    def penalises(self) -> bool:
        """True where logits depend on how often a token was there."""
        return (self.frequency_penalty, self.presence_penalty, self.repetition_penalty) != (0, 0, 1)

    @property
    def depends_on_text(self) -> bool:
        """True where a row is processed by the tokens before it, and not by their number alone."""
        return self.penalises or bool(self.bad_token_ids) or self.constraint is not None

    @property
    def is_greedy(self) -> bool:
        """True below the smallest usable temperature."""
        return self.temperature < GREEDY_BELOW

    def mode(self, rule: AcceptanceRule = AcceptanceRule.COUPLED) -> Mode:
        """Return the mode of a request whose sampled tokens are decided by a rule."""
        if self.is_greedy:
            return Mode.GREEDY
        return Mode.COUPLED if rule is AcceptanceRule.COUPLED else Mode.RATIO

    @property
    def key(self) -> int:
        """The 64-bit noise key of the seed; Raises: AssertionError before a seed was drawn."""
        assert self.seed is not None
        return self.seed % 2**64

    @classmethod
    def from_proto(cls, message: pb.SamplingParams) -> "SamplingParams":
        """Read a message, unset fields at their defaults.

        Raises: InvalidField for a value out of range and, by name, for what is not built.
        """
        refuse_not_built(message)
        values: dict[str, Any] = {
            name: getattr(message, name) for name in OPTIONAL if message.HasField(name)
        }
        values |= {name: tuple(getattr(message, name)) for name in REPEATED}
        return cls(
            **values,
            logit_bias=tuple(sorted(message.logit_bias.items())),
            bad_token_ids=tuple(tuple(each.ids) for each in message.bad_token_ids),
            constraint=Constraint.from_proto(message),
        )

    def to_proto(self) -> pb.SamplingParams:
        """Return the message with every set value filled in."""
        values = {name: getattr(self, name) for name in (*OPTIONAL, *REPEATED)}
        message = pb.SamplingParams(
            **{name: value for name, value in values.items() if value is not None},
            logit_bias=dict(self.logit_bias),
            bad_token_ids=[pb.TokenIds(ids=ids) for ids in self.bad_token_ids],
        )
        if self.constraint is not None:
            self.constraint.write(message)
        return message


def choice_seed(seed: int, index: int) -> int:
    """Return the seed of one of several choices: the request's own for the first.

    The others are hashes, so that neighbouring seeds have no choices in common. A request with the
    seed of a choice makes that choice alone.
    """
    if not index:
        return seed
    told = (seed % 2**64).to_bytes(8, "little") + index.to_bytes(8, "little")
    digest = hashlib.blake2b(told, digest_size=8, person=b"choice seed").digest()
    return int.from_bytes(digest, "little", signed=True)


def proposal_key(key: int) -> int:
    """Return the key of a request's draft tokens in RATIO, from which nobody finds the seed's own.

    A drafter that knew the seed would know which of its tokens will be kept.
    """
    digest = hashlib.blake2b(key.to_bytes(8, "little"), digest_size=8, person=b"proposal key")
    return int.from_bytes(digest.digest(), "little")


def drafter_key(mode: Mode, key: int) -> int:
    """Return the noise key that a drafter is told of a sequence with this key."""
    match mode:
        case Mode.GREEDY:
            return 0
        case Mode.COUPLED:
            return key
        case Mode.RATIO:
            return proposal_key(key)


def read_law(mode: int, message: pb.SamplingParams) -> tuple[Mode, SamplingParams]:
    """Return the law of a sequence whose lease opens at a worker.

    Raises: InvalidField for a mode that is unknown or does not fit the temperature.
    """
    known = Mode.from_proto(mode)
    sampling = SamplingParams.from_proto(message)
    if known is not Mode.GREEDY and sampling.is_greedy:
        raise InvalidField("open.mode", f"temperature {sampling.temperature} needs GREEDY")
    return known, sampling


def refuse_not_built(message: pb.SamplingParams) -> None:
    """Raise InvalidField for the first parameter that asks for what is not built yet."""
    for name, neutral in NOT_BUILT.items():
        if message.HasField(name) and getattr(message, name) != neutral:
            raise _invalid(name, f"{getattr(message, name)!r} is not supported")


def _in_range(name: str, value: float, low: float, high: float, *, open_low: bool = False) -> None:
    if math.isnan(value) or not low <= value <= high or (open_low and value == low):
        raise _invalid(name, f"{value} is outside {'(' if open_low else '['}{low}, {high}]")


def _invalid(name: str, message: str) -> InvalidField:
    return InvalidField(f"sampling_params.{name}", message)
