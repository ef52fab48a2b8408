"""What the rules of a policy can see of a request."""

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from outrider.errors import InvalidField
from outrider.policy.schema import MAX_METADATA_CHARACTERS, Policy
from outrider.sampling import SamplingParams
from outrider.v1 import generation_pb2 as pb


@dataclass(frozen=True, slots=True)
class Traits:
    """A request as rules see it; None stands for what is not known where one asks offline."""

    model: str = ""
    """Empty: not known."""
    is_greedy: bool = True
    temperature: float = 0.0
    """As it travels, in single precision."""
    num_prompt_tokens: int | None = None
    max_tokens: int | None = None
    priority: int = 0
    features: frozenset[str] = frozenset()
    metadata: Mapping[str, str] = field(default_factory=dict)

    def to_proto(self) -> pb.RequestTraits:
        """Return the message; Raises: AssertionError where something is not known."""
        assert self.num_prompt_tokens is not None
        assert self.max_tokens is not None
        return pb.RequestTraits(
            model=self.model,
            greedy=self.is_greedy,
            temperature=self.temperature,
            num_prompt_tokens=self.num_prompt_tokens,
            max_tokens=self.max_tokens,
            priority=self.priority,
            features=sorted(self.features),
            metadata=self.metadata,
        )

    @classmethod
    def from_proto(cls, message: pb.RequestTraits) -> "Traits":
        """Read a message."""
        return cls(
            model=message.model,
            is_greedy=message.greedy,
            temperature=message.temperature,
            num_prompt_tokens=message.num_prompt_tokens,
            max_tokens=message.max_tokens,
            priority=message.priority,
            features=frozenset(message.features),
            metadata=dict(message.metadata),
        )


def single(value: float) -> float:
    """Return the value that is left of a number in single precision."""
    (rounded,) = struct.unpack("<f", struct.pack("<f", value))
    return float(rounded)


def features_of(
    sampling: SamplingParams, *, has_tools: bool = False, is_traced: bool = False
) -> frozenset[str]:
    """Return the names of the parts that a request has."""
    present = {
        "bad_words": bool(sampling.bad_words or sampling.bad_token_ids),
        "constraint": sampling.constraint is not None,
        "logit_bias": bool(sampling.logit_bias),
        "logprobs": sampling.logprobs is not None,
        "n": sampling.n > 1,
        "penalties": sampling.penalises,
        "prompt_logprobs": sampling.prompt_logprobs is not None,
        "token_masks": bool(sampling.allowed_token_ids or sampling.banned_token_ids),
        "tools": has_tools,
        "trace": is_traced,
    }
    return frozenset(name for name, is_there in present.items() if is_there)


def declared_metadata(policy: Policy, metadata: Mapping[str, str | bytes]) -> dict[str, str]:
    """Return the values of the keys that the policy declares.

    Raises: InvalidField for one that is too long to be carried in receipts.
    """
    found = {}
    for key in policy.metadata:
        if key not in metadata:
            continue
        value = str(metadata[key])
        if len(value) > MAX_METADATA_CHARACTERS:
            limit = f"at most {MAX_METADATA_CHARACTERS}"
            raise InvalidField(f"metadata {key}", f"{len(value)} characters, {limit}")
        found[key] = value
    return found
