"""Sampling parameters of a request: ranges, defaults and what is refused by name."""

import enum
import hashlib
import math
from dataclasses import dataclass
from typing import Any

from outrider.errors import InvalidField
from outrider.v1 import common_pb2 as pb

GREEDY_BELOW = 1e-5  # temperatures below divide logits into infinities; they mean argmax
MAX_STOP_STRINGS = 16
MAX_STOP_CHARACTERS = 256
MAX_STOP_TOKEN_IDS = 64
MAX_TRACED_IDS = 64


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


OPTIONAL = (
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "max_tokens",
    "min_tokens",
    "skip_special_tokens",
    "ignore_eos",
    "seed",
)
# Parameters of the schema that are refused unless they hold the value that changes nothing.
NOT_BUILT: dict[str, object] = {
    "frequency_penalty": 0.0,
    "presence_penalty": 0.0,
    "repetition_penalty": 1.0,
    "spaces_between_special_tokens": True,
    "n": 1,
    "logprobs": None,
    "prompt_logprobs": None,
    "include_stop_str_in_output": False,
    "truncate_prompt_tokens": None,
}


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How the tokens of one request are sampled; checked at birth.

    Raises: InvalidField naming the parameter and its limit.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    skip_special_tokens: bool = True
    ignore_eos: bool = False
    seed: int | None = None

    def __post_init__(self) -> None:
        _in_range("temperature", self.temperature, 0.0, 100.0)
        _in_range("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _in_range("top_k", self.top_k, -1, 2**31 - 1)
        _in_range("min_p", self.min_p, 0.0, 1.0)
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
        stop_token_ids = tuple(message.stop_token_ids)
        return cls(**values, stop=tuple(message.stop), stop_token_ids=stop_token_ids)

    def to_proto(self) -> pb.SamplingParams:
        """Return the message with every set value filled in."""
        message = pb.SamplingParams(
            temperature=self.temperature,
            top_p=self.top_p,
            top_k=self.top_k,
            min_p=self.min_p,
            min_tokens=self.min_tokens,
            stop=self.stop,
            stop_token_ids=self.stop_token_ids,
            skip_special_tokens=self.skip_special_tokens,
            ignore_eos=self.ignore_eos,
        )
        if self.max_tokens is not None:
            message.max_tokens = self.max_tokens
        if self.seed is not None:
            message.seed = self.seed
        return message


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
    if message.logit_bias:
        raise _invalid("logit_bias", "is not supported")
    constraint = message.WhichOneof("constraint")
    if constraint is not None:
        raise _invalid(constraint, "is not supported")


def _in_range(name: str, value: float, low: float, high: float, *, open_low: bool = False) -> None:
    if math.isnan(value) or not low <= value <= high or (open_low and value == low):
        raise _invalid(name, f"{value} is outside {'(' if open_low else '['}{low}, {high}]")


def _invalid(name: str, message: str) -> InvalidField:
    return InvalidField(f"sampling_params.{name}", message)
