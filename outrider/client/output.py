"""What came back of a finished request."""

from collections.abc import Iterable
from dataclasses import dataclass

from outrider.v1 import common_pb2, generation_pb2


@dataclass(frozen=True, slots=True)
class Choice:
    """One choice of a request: its chunks, and its completion with the receipt."""

    chunks: tuple[generation_pb2.GenerateChunk, ...]
    complete: generation_pb2.GenerateComplete

    @property
    def text(self) -> str:
        """The output text."""
        return "".join(chunk.text for chunk in self.chunks)

    @property
    def token_ids(self) -> list[int]:
        """The output ids."""
        return list(self.complete.output_ids)

    @property
    def logprobs(self) -> list[common_pb2.TokenLogprobs]:
        """One entry for each output id, if the request asked for them."""
        return list(self.complete.logprobs)


@dataclass(frozen=True, slots=True)
class Output:
    """A finished request; the facts of its first choice are its own."""

    choices: tuple[Choice, ...]
    """As many as ``n``, in the order of their index."""

    @property
    def chunks(self) -> tuple[generation_pb2.GenerateChunk, ...]:
        """The chunks of the first choice."""
        return self.choices[0].chunks

    @property
    def complete(self) -> generation_pb2.GenerateComplete:
        """The completion of the first choice."""
        return self.choices[0].complete

    @property
    def text(self) -> str:
        """The text of the first choice."""
        return self.choices[0].text

    @property
    def token_ids(self) -> list[int]:
        """The ids of the first choice."""
        return self.choices[0].token_ids

    @property
    def logprobs(self) -> list[common_pb2.TokenLogprobs]:
        """The log probabilities of the first choice."""
        return self.choices[0].logprobs


def collect(responses: Iterable[generation_pb2.GenerateResponse]) -> Output:
    """Put the messages of a whole stream together, choice by choice.

    Raises: RuntimeError if the stream ended with OK but a choice did not.
    """
    chunks: dict[int, list[generation_pb2.GenerateChunk]] = {0: []}
    completes: dict[int, generation_pb2.GenerateComplete] = {}
    for response in responses:
        if response.WhichOneof("kind") == "chunk":
            chunks.setdefault(response.chunk.index, []).append(response.chunk)
        else:
            completes[response.complete.index] = response.complete
            chunks.setdefault(response.complete.index, [])
    if unfinished := sorted(chunks.keys() - completes.keys()):
        raise RuntimeError(f"the stream ended with OK but without a completion of {unfinished}")
    return Output(
        tuple(Choice(tuple(chunks[index]), completes[index]) for index in sorted(completes))
    )
