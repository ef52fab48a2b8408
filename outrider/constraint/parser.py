"""The library's parser behind one sequence of ids, moved on and back."""

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from llguidance import LLMatcher

from outrider.constraint.grammar import Grammar
from outrider.token_sets import Bits

Answer = TypeVar("Answer")
MAX_ANSWER_S = 0.25
"""Of one core, for one answer; of an ambiguous grammar they take longer with every token."""
NUM_SLOW = 3
"""Answers of a kind in a row that must be slow to count: Python itself may pause in one."""
NO_WAY_ON = "NoExtensionBias"
"""What the library says where no token can follow, and the text must not end either."""


class TooComplex(Exception):
    """The parser met one of its limits; the message says which."""


@dataclass(frozen=True, slots=True)
class Place:
    """Behind ``base`` and then ``path``; parsers know a base that they met before by identity."""

    base: tuple[int, ...] = ()
    path: tuple[int, ...] = ()

    def behind(self, token_id: int) -> "Place":
        """Return the place behind one more token."""
        return Place(self.base, (*self.path, token_id))

    def settled(self) -> "Place":
        """Return the same place with all ids in the base."""
        return Place((*self.base, *self.path)) if self.path else self


class Parser:
    """Answers for any place; fast for places near the last one.

    Safe to use from several threads: each call takes the parser to its own place first.
    """

    __slots__ = ("_at", "_clock", "_grammar", "_has_failed", "_lock", "_matcher", "_start", "_took")

    def __init__(self, grammar: Grammar, *, clock: Callable[[], float] = time.thread_time) -> None:
        self._grammar = grammar
        self._clock = clock
        self._lock = threading.Lock()
        self._start = grammar.start
        self._matcher: LLMatcher | None = None
        self._at = Place()
        self._has_failed = False
        # What the last answers took, by kind: judging an id is quicker than finding all.
        self._took = {kind: deque[float](maxlen=NUM_SLOW) for kind in ("all", "one")}

    @property
    def pace_s(self) -> float:
        """Time of one core that answers take at present; 0 before it is known."""
        return max(min(took) if len(took) == NUM_SLOW else 0.0 for took in self._took.values())

    def following(self, place: Place) -> tuple[Bits, bool]:
        """Return the ids that go on with the text, and whether it may end.

        The ids are those of the library's vocabulary, special tokens among them where it would take
        them. Raises: TooComplex.
        """

        def answer(matcher: LLMatcher) -> tuple[Bits, bool]:
            bits = np.frombuffer(matcher.compute_bitmask(), dtype=np.uint8)
            if matcher.is_error() and matcher.get_error().startswith(NO_WAY_ON):
                self._matcher = None
                return np.zeros_like(bits), False
            return bits, matcher.is_accepting()

        return self._ask("all", place, answer)

    def accepts(self, place: Place, token_id: int) -> bool:
        """Return whether an id goes on with the text. Raises: TooComplex."""
        return self._ask("one", place, lambda matcher: matcher.validate_tokens([token_id]) == 1)

    def may_end(self, place: Place) -> bool:
        """Return whether the text satisfies the constraint as it is. Raises: TooComplex."""
        return self._ask("one", place, lambda matcher: matcher.is_accepting())

    def _ask(self, kind: str, place: Place, answer: Callable[[LLMatcher], Answer]) -> Answer:
        with self._lock:
            if self.pace_s > MAX_ANSWER_S:
                raise TooComplex(f"one token takes {self.pace_s:.2f} s to judge")
            began = self._clock()
            try:
                return self._answer(place, answer)
            except TooComplex:
                if self._has_failed:
                    raise
                # Parsers of one grammar share what they have learnt of the tokens, and that is
                # bounded: one that begins afresh may have room.
                self._has_failed = True
                self._grammar.renew(self._start)
                return self._answer(place, answer)
            finally:
                self._took[kind].append(self._clock() - began)

    def _answer(self, place: Place, answer: Callable[[LLMatcher], Answer]) -> Answer:
        matcher = self._matcher
        if matcher is None:
            self._start = self._grammar.start
            matcher = self._start.deep_copy()
            self._at = Place()
        self._matcher = None  # until it is known to be sound
        self._go(matcher, place)
        self._matcher = matcher
        found = answer(matcher)
        self._check(matcher)
        return found

    def _go(self, matcher: LLMatcher, place: Place) -> None:
        at, base = self._at, place.base
        if base is at.base:
            have, want = at.path, place.path
        elif base[: len(at.base)] == at.base:  # what was a path may be a part of the base by now
            have, want = at.path, (*base[len(at.base) :], *place.path)
        else:
            have, want = (*at.base, *at.path), (*base, *place.path)
        shared = _num_shared(have, want)
        if shared < len(have) and not matcher.rollback(len(have) - shared):
            raise TooComplex(self._grammar.why(matcher))
        if shared < len(want) and not matcher.consume_tokens(list(want[shared:])):
            raise TooComplex(self._grammar.why(matcher))
        self._at = place

    def _check(self, matcher: LLMatcher) -> None:
        if self._matcher is not None and matcher.is_error():
            self._matcher = None
            raise TooComplex(self._grammar.why(matcher))


def _num_shared(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many ids both begin with."""
    length = min(len(one), len(other))
    if one[:length] == other[:length]:
        return length
    return next(i for i in range(length) if one[i] != other[i])
