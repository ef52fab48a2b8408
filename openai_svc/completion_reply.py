"""The answer of /v1/completions."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from openai_svc.completions import CompletionBody
from openai_svc.logprobs import completion_logprobs, prompt_offsets
from openai_svc.reply import Delta, Reply, end_of, whole_logprobs
from outrider.v1 import generation_pb2 as pb
from outrider.v1.common_pb2 import TokenLogprobs


@dataclass(slots=True)
class Echo:
    """A prompt that comes back before its output."""

    text: str
    token_ids: Sequence[int] = ()
    """Of an echo with log probabilities."""


class CompletionReply(Reply):
    """The answer of /v1/completions."""

    prefix = "cmpl"
    whole_object = "text_completion"
    event_object = "text_completion"

    def __init__(self, body: CompletionBody, *, echoes: Sequence[Echo] = (), **about: Any) -> None:
        super().__init__(body, **about)
        self._body = body
        self._echoes = echoes
        self._begun: set[int] = set()
        self._offsets: dict[int, int] = {}
        self._prompt_logprobs: dict[int, Sequence[TokenLogprobs]] = {}

    @property
    def shows_output(self) -> bool:
        """False for an echo alone."""
        return not self._body.is_echo_only

    def _delta(self, index: int, chunk: pb.GenerateChunk) -> Delta:
        if not self.shows_output:
            return Delta(index)
        logprobs = None
        if self._body.logprobs is not None:
            assert self._vocabulary is not None
            offsets = self._offsets_of(index, chunk.pieces)
            logprobs = completion_logprobs(
                chunk.logprobs, chunk.token_ids, offsets, self._vocabulary
            )
        return Delta(index, chunk.text, logprobs)

    def _end(self, prompt: int, complete: pb.GenerateComplete) -> dict[str, object]:
        if complete.index == 0:
            self._prompt_logprobs[prompt] = complete.prompt_logprobs
        return super()._end(prompt, complete)

    def _choice(self, index: int, deltas: Sequence[Delta]) -> dict[str, object]:
        if echo := self._echo(index):
            deltas = [self._echo_delta(index, echo), *deltas]
        return {
            "index": index,
            "text": "".join(delta.text for delta in deltas),
            "logprobs": whole_logprobs(deltas),
            **end_of(deltas),
        }

    def _event_choices(self, delta: Delta) -> Iterator[dict[str, object]]:
        def choice(text: str, **others: object) -> dict[str, object]:
            bare = {"index": delta.index, "text": text, "logprobs": None, "finish_reason": None}
            return {**bare, **others}

        if delta.index not in self._begun:
            self._begun.add(delta.index)
            if echo := self._echo(delta.index):
                yield choice(echo.text)
        if delta.end is not None:
            yield choice("", **delta.end)
        elif delta.text or delta.logprobs is not None:
            yield choice(delta.text, logprobs=delta.logprobs)

    def _echo(self, index: int) -> Echo | None:
        return self._echoes[index // self._body.num_choices] if self._echoes else None

    def _echo_delta(self, index: int, echo: Echo) -> Delta:
        if not self._body.echoes_logprobs:
            return Delta(index, echo.text)
        assert self._vocabulary is not None
        vocabulary = self._vocabulary
        entries = self._prompt_logprobs[index // self._body.num_choices]
        offsets = prompt_offsets(echo.text, [vocabulary[i] for i in echo.token_ids])
        logprobs = completion_logprobs([None, *entries], echo.token_ids, list(offsets), vocabulary)
        return Delta(index, echo.text, logprobs)

    def _offsets_of(self, index: int, pieces: Sequence[str]) -> list[int]:
        """Return where each piece of a choice begins, and count on."""
        echo = self._echo(index)
        offset = self._offsets.get(index, len(echo.text) if echo else 0)
        offsets = []
        for piece in pieces:
            offsets.append(offset)
            offset += len(piece)
        self._offsets[index] = offset
        return offsets
