"""The output of a sequence as the client sees it: where it ends, and the text that is certain."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from orchestrator.sequence import End, FinishReason
from orchestrator.verdict import CommittedToken
from outrider.text import StopMatcher, TextStream


@dataclass(frozen=True, slots=True)
class Delivery:
    """What one cycle adds.

    Final tokens, the text that became certain with each, the end if it is reached.
    """

    tokens: list[CommittedToken]
    pieces: list[str]
    end: End | None

    @property
    def text(self) -> str:
        """The pieces joined."""
        return "".join(self.pieces)


@dataclass(slots=True)
class Transcript:
    """Cuts committed tokens where the output ends and turns them into text, token by token.

    The order of judging a token: stop ids first, then stop strings, then length. ``keeps_stop``
    makes the text of a stop id part of the output, as far as the stream tells it; whether a matched
    stop string is, ``stops`` decides. Neither changes where the output ends.
    """

    stream: TextStream
    stops: StopMatcher
    stop_token_ids: frozenset[int]
    max_output_tokens: int
    keeps_stop: bool = False
    num_output_tokens: int = field(default=0)

    def take(self, tokens: Sequence[CommittedToken]) -> Delivery:
        """Return what is delivered of a cycle's tokens; nothing is taken after an end."""
        delivered: list[CommittedToken] = []
        pieces: list[str] = []
        for token in tokens:
            delivered.append(token)
            self.num_output_tokens += 1
            piece, end = self._judge(token.token_id)
            pieces.append(piece)
            if end is not None:
                return Delivery(delivered, pieces, end)
        return Delivery(delivered, pieces, None)

    def _judge(self, token_id: int) -> tuple[str, End | None]:
        if token_id in self.stop_token_ids:
            text = self._rest_with(token_id) if self.keeps_stop else self._rest()
            return text, End(FinishReason.STOP, token_id=token_id)
        text = self.stops.push(self.stream.push(token_id), self.num_output_tokens - 1)
        end = self._end_by_string()
        if end is None and self.num_output_tokens >= self.max_output_tokens:
            text += self._rest()
            end = self._end_by_string() or End(FinishReason.LENGTH)
        return text, end

    def _rest(self) -> str:
        """Return what was held back, for the text ends here."""
        flushed = self.stops.push(self.stream.flush(), self.num_output_tokens - 1)
        return flushed if self._end_by_string() is not None else flushed + self.stops.flush()

    def _rest_with(self, token_id: int) -> str:
        """Return what was held back and the text of the id that ends the output."""
        held = self.stops.flush()  # its text may complete a stop string, but the id came first
        return held + self.stream.push(token_id) + self.stream.flush()

    def _end_by_string(self) -> End | None:
        match = self.stops.match
        return None if match is None else End(FinishReason.STOP, stop=match.stop)
