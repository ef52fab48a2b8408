"""Responses of the orchestrator as the JSON that OpenAI's clients read, in a stream or whole.

Both ways go through ``Delta``: a stream sends each as an event, a whole answer puts those of a
choice together.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from openai_svc.logprobs import Lists, joined, prompt_logprobs
from openai_svc.parameters import Parameters
from openai_svc.vocabulary import Vocabulary
from outrider.v1 import generation_pb2 as pb

FINISH_REASONS = {pb.FINISH_REASON_STOP: "stop", pb.FINISH_REASON_LENGTH: "length"}
# What the short form of a receipt has, under the receipt's own names.
RECEIPT_FIELDS = (
    "request_id",
    "decision",
    "rule",
    "seed",
    "mean_acceptance_length",
    "num_spec_steps",
    "num_draft_tokens",
    "num_accepted_draft_tokens",
    "num_target_passes",
)


@dataclass(frozen=True, slots=True)
class Delta:
    """What one response adds to one choice."""

    index: int
    text: str = ""
    logprobs: Lists | None = None
    end: Mapping[str, object] | None = None
    """Fields of a choice that has ended, such as ``finish_reason``."""


@dataclass(slots=True)
class Usage:
    """Tokens of all prompts and choices; a prompt counts once, however many choices it has."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0

    def add(self, complete: pb.GenerateComplete, *, shown: bool) -> None:
        """Count a choice that has ended."""
        if complete.index == 0:
            self.prompt_tokens += complete.prompt_tokens
            self.cached_tokens += complete.cached_tokens
        if shown:
            self.completion_tokens += complete.completion_tokens

    @property
    def json(self) -> dict[str, object]:
        """The usage as clients read it."""
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "total_tokens": self.prompt_tokens + self.completion_tokens,
            "prompt_tokens_details": {"cached_tokens": self.cached_tokens},
        }


class Reply(ABC):
    """The answer to one HTTP request; takes the responses of all its calls."""

    prefix: str
    whole_object: str
    event_object: str

    def __init__(
        self, body: Parameters, *, request_id: str, model: str, vocabulary: Vocabulary | None
    ) -> None:
        self._parameters = body
        self._head = {"id": f"{self.prefix}-{request_id}", "created": int(time.time())}
        self._model = model
        self._vocabulary = vocabulary
        self._deltas: dict[int, list[Delta]] = {}
        self.usage = Usage()

    def take(self, prompt: int, response: pb.GenerateResponse) -> Delta:
        """Read a response to a prompt, whose ids the vocabulary has learned."""
        if response.WhichOneof("kind") == "chunk":
            index = self._index(prompt, response.chunk.index)
            return self._delta(index, response.chunk)
        complete = response.complete
        self.usage.add(complete, shown=self.shows_output)
        return Delta(self._index(prompt, complete.index), end=self._end(prompt, complete))

    def keep(self, delta: Delta) -> None:
        """Keep a delta for the whole answer."""
        self._deltas.setdefault(delta.index, []).append(delta)

    def whole(self) -> dict[str, object]:
        """Return the answer that all kept deltas make."""
        choices = [self._choice(i, self._deltas[i]) for i in sorted(self._deltas)]
        return {
            **self._head,
            "object": self.whole_object,
            "model": self._model,
            "choices": choices,
            "usage": self.usage.json,
        }

    def events(self, delta: Delta) -> Iterator[dict[str, object]]:
        """Yield the events of a delta."""
        for choice in self._event_choices(delta):
            event = self._event([choice])
            if self._parameters.includes_usage:
                event["usage"] = None
            yield event

    def usage_event(self) -> dict[str, object]:
        """Return the event that ends a stream which includes its usage."""
        return {**self._event([]), "usage": self.usage.json}

    @property
    def shows_output(self) -> bool:
        """False where the output is thrown away."""
        return True

    def _event(self, choices: list[dict[str, object]]) -> dict[str, object]:
        return {
            **self._head,
            "object": self.event_object,
            "model": self._model,
            "choices": choices,
        }

    def _index(self, prompt: int, index: int) -> int:
        return prompt * self._parameters.num_choices + index

    def _end(self, prompt: int, complete: pb.GenerateComplete) -> dict[str, object]:
        end: dict[str, object] = {
            "finish_reason": FINISH_REASONS[complete.finish_reason],
            "stop_reason": _stop_reason(complete),
        }
        if self._parameters.outrider_receipt:
            end["outrider"] = {name: getattr(complete.receipt, name) for name in RECEIPT_FIELDS}
        if self._parameters.prompt_logprobs is not None and complete.index == 0:
            assert self._vocabulary is not None
            end["prompt_logprobs"] = prompt_logprobs(complete.prompt_logprobs, self._vocabulary)
        return end

    @abstractmethod
    def _delta(self, index: int, chunk: pb.GenerateChunk) -> Delta:
        """Read a chunk of a choice."""

    @abstractmethod
    def _choice(self, index: int, deltas: Sequence[Delta]) -> dict[str, object]:
        """Return a choice of the whole answer."""

    @abstractmethod
    def _event_choices(self, delta: Delta) -> Iterator[dict[str, object]]:
        """Yield the choice of each event that a delta makes."""


def whole_logprobs(deltas: Sequence[Delta]) -> Lists | None:
    """Return the log probabilities of all deltas of a choice, None if none were asked for."""
    return joined(each.logprobs for each in deltas if each.logprobs is not None) or None


def end_of(deltas: Sequence[Delta]) -> Mapping[str, object]:
    """Return the fields of a choice that has ended."""
    (end,) = (delta.end for delta in deltas if delta.end is not None)
    return end


def _stop_reason(complete: pb.GenerateComplete) -> str | int | None:
    """Return what a client's own stop matched, nothing where the model ended the text itself."""
    match complete.WhichOneof("matched_stop"):
        case "matched_stop_str":
            return complete.matched_stop_str
        case "matched_token_id":
            if complete.matched_token_id not in complete.receipt.target.eos_token_ids:
                return complete.matched_token_id
    return None
