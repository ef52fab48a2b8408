"""The state of one choice of a request; everything that changes its state is in this file."""

import enum
from collections.abc import Sequence as Ids
from dataclasses import dataclass, field

from orchestrator.verdict import CommittedToken
from outrider.prefix import PrefixDigest


class State(enum.Enum):
    """Where a sequence is in its life."""

    WAITING = "waiting"  # admitted, holds no lease
    RUNNING = "running"  # holds a verify lease
    RECOVERING = "recovering"  # lost its verifier, looks for an equal one
    FINISHED = "finished"  # has a finish reason
    ABORTED = "aborted"  # cancelled, timed out or failed


class Event(enum.Enum):
    """What can happen to a sequence."""

    VERIFIER_FOUND = "verifier_found"
    VERIFIER_LOST = "verifier_lost"
    ENDED = "ended"
    ABORT = "abort"


class FinishReason(enum.Enum):
    """Why a sequence finished."""

    STOP = "stop"
    LENGTH = "length"


TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.WAITING, Event.VERIFIER_FOUND): State.RUNNING,
    (State.WAITING, Event.ABORT): State.ABORTED,
    (State.RUNNING, Event.VERIFIER_LOST): State.RECOVERING,
    (State.RUNNING, Event.ENDED): State.FINISHED,
    (State.RUNNING, Event.ABORT): State.ABORTED,
    (State.RECOVERING, Event.VERIFIER_FOUND): State.RUNNING,
    (State.RECOVERING, Event.ABORT): State.ABORTED,
}


class IllegalTransition(Exception):
    """The event cannot happen in this state; nothing was changed."""


@dataclass(frozen=True, slots=True)
class End:
    """Why a sequence finished, and by which id or string."""

    reason: FinishReason
    token_id: int | None = None
    stop: str | None = None


@dataclass(slots=True)
class Sequence:
    """Token ids of prompt and output; owned by the decode loop.

    ``max_length`` bounds prompt and output together: max_tokens or the context, whichever ends
    first.
    """

    sequence_id: str
    prompt_ids: tuple[int, ...]
    max_length: int
    state: State = State.WAITING
    end: End | None = None
    cycle: int = 0
    token_ids: list[int] = field(init=False)
    digest: PrefixDigest = field(init=False)

    def __post_init__(self) -> None:
        assert 0 < len(self.prompt_ids) < self.max_length
        self.token_ids = list(self.prompt_ids)
        self.digest = PrefixDigest(self.prompt_ids)

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def output_ids(self) -> list[int]:
        """Ids after the prompt."""
        return self.token_ids[len(self.prompt_ids) :]

    @property
    def num_remaining(self) -> int:
        """Tokens that may still be committed."""
        return self.max_length - len(self.token_ids)

    @property
    def is_finished(self) -> bool:
        """True once the sequence has an end."""
        return self.state is State.FINISHED

    def apply(self, event: Event) -> None:
        """Change the state; Raises: IllegalTransition where the table has no entry."""
        following = TRANSITIONS.get((self.state, event))
        if following is None:
            raise IllegalTransition(f"{event.value} in state {self.state.value}")
        self.state = following

    def commit(self, tokens: Ids[CommittedToken], end: End | None) -> None:
        """Append the final tokens of a cycle; with an end the sequence finishes."""
        assert self.state is State.RUNNING
        assert len(tokens) <= self.num_remaining
        ids = [token.token_id for token in tokens]
        self.token_ids.extend(ids)
        self.digest.extend(ids)
        self.cycle += 1
        if end is not None:
            self.end = end
            self.apply(Event.ENDED)
