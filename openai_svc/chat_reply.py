"""The answer of /v1/chat/completions."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from openai_svc.chat import ChatBody
from openai_svc.logprobs import chat_logprobs
from openai_svc.reply import Delta, Reply, end_of, whole_logprobs
from outrider.v1 import generation_pb2 as pb


class ChatReply(Reply):
    """The answer of /v1/chat/completions."""

    prefix = "chatcmpl"
    whole_object = "chat.completion"
    event_object = "chat.completion.chunk"

    def __init__(self, body: ChatBody, **about: Any) -> None:
        super().__init__(body, **about)
        self._body = body
        self._begun: set[int] = set()

    def _delta(self, index: int, chunk: pb.GenerateChunk) -> Delta:
        logprobs = None
        if self._body.logprobs:
            assert self._vocabulary is not None
            logprobs = chat_logprobs(chunk.logprobs, self._vocabulary)
        return Delta(index, chunk.text, logprobs)

    def _choice(self, index: int, deltas: Sequence[Delta]) -> dict[str, object]:
        text = "".join(delta.text for delta in deltas)
        return {
            "index": index,
            "message": {"role": "assistant", "content": text, "refusal": None},
            "logprobs": whole_logprobs(deltas),
            **end_of(deltas),
        }

    def _event_choices(self, delta: Delta) -> Iterator[dict[str, object]]:
        def choice(content: Mapping[str, object], **others: object) -> dict[str, object]:
            bare = {"index": delta.index, "delta": content, "logprobs": None}
            return {**bare, "finish_reason": None, **others}

        if delta.index not in self._begun:
            self._begun.add(delta.index)
            yield choice({"role": "assistant", "content": "", "refusal": None})
        if delta.end is not None:
            yield choice({}, **delta.end)
        elif delta.text or delta.logprobs is not None:
            yield choice({"content": delta.text}, logprobs=delta.logprobs)
