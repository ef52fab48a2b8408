"""A request that passed admission: every field checked, tokenised once."""

import secrets
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from orchestrator.chat import Chat
from orchestrator.policy import SpeculationPlan, plan_of
from orchestrator.workers import Target
from outrider.constraint import ConstrainedText
from outrider.errors import InvalidField
from outrider.identity import IdentityDigests
from outrider.policy import (
    MAX_PRIORITY,
    Decision,
    Policy,
    SpeculationOptions,
    Traits,
    decide,
    declared_metadata,
    features_of,
)
from outrider.sampling import Mode, SamplingParams, choice_seed

MAX_SALT_CHARACTERS = 256
NO_METADATA: Mapping[str, str | bytes] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Text:
    """Plain text to continue."""

    text: str


@dataclass(frozen=True, slots=True)
class TokenIds:
    """Token ids to continue."""

    input_ids: tuple[int, ...]


Prompt = Text | TokenIds | Chat


@dataclass(frozen=True, slots=True)
class Request:
    """What the decode loop needs of a request.

    ``sampling`` is resolved: seed drawn, max_tokens filled in, ``stop_token_ids`` all ids that end
    the output.
    """

    request_id: str
    target: Target
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    plan: SpeculationPlan
    cache_salt: str
    priority: int = 0
    index: int = 0
    """Which choice this is of what the client asked for."""
    arrived_at_s: float = field(default_factory=time.time)
    """Unix time."""
    decision: Decision | None = None
    """What the plan was made from; None: it is no client's request."""
    traits: Traits = Traits()
    """What the policy saw of it."""
    options: SpeculationOptions = SpeculationOptions()
    """What the client asked of speculation."""
    is_watched: bool = False
    """The monitor looks at what comes of it."""
    constrained: ConstrainedText | None = None
    """The output before its first token, where there is a constraint."""

    @property
    def sequence_id(self) -> str:
        """Name of the sequence: the request's, with the choice behind it from the second on."""
        return f"{self.request_id}/{self.index}" if self.index else self.request_id

    @property
    def mode(self) -> Mode:
        """The mode of the sequence."""
        return self.sampling.mode(self.plan.rule)

    @property
    def max_length(self) -> int:
        """Bound of prompt and output together."""
        assert self.sampling.max_tokens is not None
        return len(self.prompt_ids) + self.sampling.max_tokens

    def choices(self) -> list["Request"]:
        """Return every choice as a request of its own, for one choice with its own seed."""
        return [self._choice(index) for index in range(self.sampling.n)]

    def _choice(self, index: int) -> "Request":
        sampling = self.sampling
        assert sampling.seed is not None
        alone = replace(
            sampling,
            n=1,
            seed=choice_seed(sampling.seed, index),
            prompt_logprobs=None if index else sampling.prompt_logprobs,
        )
        return replace(self, sampling=alone, index=index)


def admit(
    *,
    request_id: str,
    target: Target,
    prompt: Prompt | None,
    sampling: SamplingParams,
    speculation: SpeculationOptions,
    expected: IdentityDigests,
    cache_salt: str,
    policy: Policy,
    priority: int = 0,
    metadata: Mapping[str, str | bytes] = NO_METADATA,
    has_tools: bool = False,
) -> Request:
    """Check what a client sent and fill in what it left open.

    ``metadata`` came with the call; ``has_tools`` tells of tools in the prompt.

    Raises: InvalidField naming field and limit; IdentityMismatch if the expected digests differ.
    """
    target.identity.require(expected)
    if len(cache_salt) > MAX_SALT_CHARACTERS:
        limit = f"at most {MAX_SALT_CHARACTERS}"
        raise InvalidField("cache_salt", f"{len(cache_salt)} characters, {limit}")
    if abs(priority) > MAX_PRIORITY:
        limit = f"outside [{-MAX_PRIORITY}, {MAX_PRIORITY}]"
        raise InvalidField("priority", f"{priority} is {limit}")
    arrived_at_s = time.time()
    prompt_ids = _tokenise(prompt, target, sampling.truncate_prompt_tokens)
    resolved = _resolve(sampling, target, len(prompt_ids))
    is_traced = bool(speculation.num_traced_ids)
    traits = Traits(
        model=target.identity.name,
        is_greedy=sampling.is_greedy,
        temperature=sampling.temperature,
        num_prompt_tokens=len(prompt_ids),
        max_tokens=resolved.max_tokens,
        priority=priority,
        features=features_of(sampling, has_tools=has_tools, is_traced=is_traced),
        metadata=declared_metadata(policy, metadata),
    )
    decision = decide(policy, traits, speculation, request_id)
    return Request(
        request_id=request_id,
        target=target,
        prompt_ids=prompt_ids,
        sampling=resolved,
        plan=plan_of(decision, num_traced_ids=speculation.num_traced_ids),
        cache_salt=cache_salt,
        priority=priority,
        arrived_at_s=arrived_at_s,
        decision=decision,
        traits=traits,
        options=speculation,
    )


async def constrain(request: Request) -> Request:
    """Return the request with its constraint compiled, so that a wrong one is refused at once.

    Raises: InvalidField naming the constraint.
    """
    constraints = request.target.codec.constraints
    return replace(request, constrained=await constraints.opened(request.sampling))


def prompt_ids_of(prompt: Prompt | None, target: Target) -> tuple[int, ...]:
    """Return the ids of a prompt, not checked against the context."""
    match prompt:
        case Text(text=text):
            return tuple(target.codec.encode(text))
        case Chat() as chat:
            ids = target.codec.apply_chat_template(
                chat.messages,
                tools=chat.tools,
                variables=chat.variables,
                continue_final_message=chat.continue_final_message,
            )
            return tuple(ids)
        case TokenIds(input_ids=ids):
            check_ids("tokenized.input_ids", ids, target.identity.vocab_size)
            return ids
        case None:
            raise InvalidField("input", "one of text, tokenized and chat must be given")


def _tokenise(prompt: Prompt | None, target: Target, most: int | None) -> tuple[int, ...]:
    """Return the ids, the last ``most`` of them where there is such a limit."""
    ids = prompt_ids_of(prompt, target)
    if most is not None:
        ids = ids[-most:]  # special tokens at the beginning go as well, as in vLLM
    if not ids:
        raise InvalidField("input", "the prompt is empty; at least one token is needed")
    context = target.identity.max_context_length
    if len(ids) >= context:
        limit = f"must be below the context of {context} tokens"
        raise InvalidField("input", f"the prompt has {len(ids)} tokens, it {limit}")
    return ids


def check_ids(field: str, ids: Sequence[int], vocab_size: int) -> None:
    """Raise InvalidField for the first id outside the vocabulary."""
    for index, token_id in enumerate(ids):
        if not 0 <= token_id < vocab_size:
            raise InvalidField(f"{field}[{index}]", f"{token_id} is outside [0, {vocab_size})")


def _resolve(sampling: SamplingParams, target: Target, num_prompt_tokens: int) -> SamplingParams:
    identity = target.identity
    _check_sampled_ids(sampling, identity.vocab_size)
    room = identity.max_context_length - num_prompt_tokens
    wanted = room if sampling.max_tokens is None else sampling.max_tokens
    if sampling.min_tokens > room:
        raise InvalidField(
            "sampling_params.min_tokens",
            f"{sampling.min_tokens} is above the {room} tokens that the context leaves",
        )
    eos = () if sampling.ignore_eos else identity.eos_token_ids
    resolved = replace(
        sampling,
        max_tokens=min(wanted, room),
        truncate_prompt_tokens=None,  # it is done
        stop_token_ids=tuple(dict.fromkeys((*eos, *sampling.stop_token_ids))),
        seed=secrets.randbits(63) if sampling.seed is None else sampling.seed,
        bad_words=(),
        bad_token_ids=(*sampling.bad_token_ids, *_bad_token_ids(sampling.bad_words, target)),
    )
    _check_that_something_is_left(resolved, identity.vocab_size)
    return resolved


def _check_sampled_ids(sampling: SamplingParams, vocab_size: int) -> None:
    for name in ("stop_token_ids", "allowed_token_ids", "banned_token_ids"):
        check_ids(f"sampling_params.{name}", getattr(sampling, name), vocab_size)
    for index, ids in enumerate(sampling.bad_token_ids):
        check_ids(f"sampling_params.bad_token_ids[{index}].ids", ids, vocab_size)
    for token_id, _ in sampling.logit_bias:
        if token_id >= vocab_size:
            limit = f"the vocabulary has {vocab_size} ids"
            raise InvalidField(f"sampling_params.logit_bias[{token_id}]", limit)


def _bad_token_ids(words: Sequence[str], target: Target) -> list[tuple[int, ...]]:
    """Return the ids of each word as it begins a text and as it stands behind a space."""
    found: dict[tuple[int, ...], None] = {}
    for word in words:
        for text in (word, f" {word}"):
            found[tuple(target.codec.encode_plain(text))] = None
    return [ids for ids in found if ids]


def _check_that_something_is_left(sampling: SamplingParams, vocab_size: int) -> None:
    """Refuse masks that could leave a position without any id, in whatever text."""
    masked = set(sampling.banned_token_ids) | {ids[-1] for ids in sampling.bad_token_ids}
    if sampling.min_tokens:
        masked |= set(sampling.stop_token_ids)
    left = set(sampling.allowed_token_ids or range(vocab_size)) - masked
    if masked and not left:
        fields = [
            name
            for name in ("allowed_token_ids", "banned_token_ids", "bad_token_ids", "min_tokens")
            if getattr(sampling, name)
        ]
        raise InvalidField(f"sampling_params.{fields[0]}", "leaves no token to sample")
