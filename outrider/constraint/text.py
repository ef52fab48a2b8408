"""A text under a constraint: which ids may follow it, and each node of a draft behind it."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Self

import numpy as np

from outrider.constraint.grammar import Grammar
from outrider.constraint.parser import Parser, Place, TooComplex
from outrider.errors import InvalidField
from outrider.token_sets import Bits, holds, pack_ids

SETTLE_AFTER = 64
"""Ids of a long text that are taken in at a time."""
SLOW_S = 0.05
"""Where answers take so long, drafts are better made without."""


@dataclass(frozen=True, slots=True)
class Ends:
    """The ids that end a text, and those that do not, of a vocabulary. Shapes: packed."""

    stops: Bits
    free: Bits
    """All ids but the stops: what may follow in free text."""
    inside: Bits
    """Ordinary ids but the stops: what may follow in constrained text."""

    @classmethod
    def of(cls, stop_token_ids: Sequence[int], grammar: Grammar) -> Self:
        """Return the sets of a request."""
        vocabulary = grammar.vocabulary
        stops = pack_ids(stop_token_ids, vocabulary.size)
        everything = pack_ids(range(vocabulary.size), vocabulary.size)
        return cls(stops, everything & ~stops, vocabulary.ordinary & ~stops)


@dataclass(frozen=True, slots=True)
class Point:
    """How far a text has come.

    ``progress`` in the marker while the text is free, None in the constrained part; ``place`` there
    is what its parser was told.
    """

    progress: int | None
    place: Place = Place()
    is_over: bool = False


@dataclass(frozen=True, slots=True)
class ConstrainedText:
    """An output, from its first token on; never changed in place.

    It satisfies ``outrider.sampling_state.Constrained``. Ids are judged by what they write alone:
    any way to cut a legal text into ordinary tokens is legal. Stop ids are allowed exactly where
    the text may end, and special tokens in free text only. Free text does not end; it goes on until
    the marker is complete, and what the token that completes it writes behind the marker is the
    beginning of the constrained part.
    """

    grammar: Grammar
    ends: Ends
    parser: Parser
    ids: tuple[int, ...] = ()
    point: Point = field(default_factory=lambda: Point(None))

    @classmethod
    def begin(cls, grammar: Grammar, stop_token_ids: Sequence[int]) -> Self:
        """Return the state before the first token."""
        ends, parser = Ends.of(stop_token_ids, grammar), Parser(grammar)
        return cls(grammar, ends, parser, point=_start(grammar))

    def anew(self) -> "ConstrainedText":
        """Return the same state for another sequence, with a parser of its own."""
        return replace(self, parser=Parser(self.grammar))

    def behind(self, output_ids: Sequence[int]) -> "ConstrainedText":
        """Return the state behind an output, which may be another than the present one.

        Raises: InvalidField if an id of it is not allowed where it stands.
        """
        ids = tuple(output_ids)
        is_longer = ids[: len(self.ids)] == self.ids
        point = self.point if is_longer else _start(self.grammar)
        for index in range(len(self.ids) if is_longer else 0, len(ids)):
            after = self._legal_step(point, ids[index])
            if after is None:
                where = f"id {ids[index]} at {index} of the output"
                raise InvalidField(self.grammar.parameter, f"{where} is not allowed there")
            point = after
            if len(point.place.path) >= SETTLE_AFTER:
                point = replace(point, place=point.place.settled())
        point = replace(point, place=point.place.settled())
        return replace(self, ids=ids, point=point)

    def allowed(self, token_ids: Sequence[int], parents: Sequence[int]) -> list[Bits | None]:
        """Return which ids may follow the output, then each node of a draft.

        As ``RowSampling.allowed``: None behind a node that is not allowed itself, and behind an
        end. A set without ids says that there is no way on, though what stands before is legal.
        """
        points: list[Point | None] = [self.point]
        rows = [self._following(self.point)]
        for node, token_id in enumerate(token_ids):
            parent = (parents[node] if parents else node - 1) + 1
            before, row = points[parent], rows[parent]
            is_legal = before is not None and row is not None and holds(row, token_id)
            point = self._step(before, token_id) if before is not None and is_legal else None
            points.append(point)
            rows.append(None if point is None else self._following(point))
        return rows

    def after(self, path: Sequence[int]) -> Bits | None:
        """Return which ids may follow a path, as ``allowed`` does for its last node.

        Made for drafts: None as well where it would take too long to say.
        """
        if self.parser.pace_s > SLOW_S:
            return None
        point = self._along(path)
        return None if point is None else self._following(point)

    def legal(
        self, path: Sequence[int], token_ids: Sequence[int], parents: Sequence[int]
    ) -> list[bool]:
        """Return of each node of a draft behind a path whether it is allowed, its parents too.

        Nothing is behind an end. Made for drafts: all are where it would take too long to say.
        """
        if self.parser.pace_s > SLOW_S:
            return [True] * len(token_ids)
        points = [self._along(path)]
        for node, token_id in enumerate(token_ids):
            before = points[(parents[node] if parents else node - 1) + 1]
            points.append(self._drafted(before, token_id))
        return [point is not None for point in points[1:]]

    def _along(self, path: Sequence[int]) -> Point | None:
        point: Point | None = self.point
        for token_id in path:
            point = self._drafted(point, token_id)
        return point

    def _drafted(self, before: Point | None, token_id: int) -> Point | None:
        """Return the point behind a token of a draft, None where the draft should end before."""
        if before is None or before.is_over:
            return None
        try:
            return self._legal_step(before, token_id)
        except InvalidField:
            return None

    def _legal_step(self, point: Point, token_id: int) -> Point | None:
        """Return the point behind a token, None if it is not allowed.

        Raises: InvalidField if the parser cannot tell.
        """
        if point.is_over:
            return point  # what follows an end is no part of the text
        try:
            if point.progress is not None:
                breaking = self.grammar.breaking(point.progress)
                is_legal = holds(self.ends.free, token_id) and token_id not in breaking
            elif holds(self.ends.stops, token_id):
                is_legal = self.parser.may_end(point.place)
            else:
                is_legal = holds(self.ends.inside, token_id) and self.parser.accepts(
                    point.place, token_id
                )
        except TooComplex as error:
            raise InvalidField(self.grammar.parameter, str(error)) from error
        return self._step(point, token_id) if is_legal else None

    def _step(self, point: Point, token_id: int) -> Point:
        """Return the point behind a token that is allowed there."""
        if point.progress is None:
            if holds(self.ends.stops, token_id):
                return replace(point, is_over=True)
            return replace(point, place=point.place.behind(token_id))
        assert self.grammar.marker is not None
        piece = self.grammar.vocabulary.texts[token_id]
        progress, rest = self.grammar.marker.read(point.progress, piece)
        if rest is None:
            return Point(progress)
        spelled = self.grammar.spell(rest)
        assert spelled is not None, "a token whose rest may not follow the marker is not allowed"
        return Point(None, Place((), spelled))

    def _following(self, point: Point) -> Bits | None:
        if point.is_over:
            return None
        if point.progress is not None:
            return self._free(point.progress)
        try:
            bits, may_end = self.parser.following(point.place)
        except TooComplex:
            return np.zeros_like(self.ends.stops)
        inside = bits[: len(self.ends.inside)] & self.ends.inside
        return inside | self.ends.stops if may_end else inside

    def _free(self, progress: int) -> Bits:
        """Return what may follow in free text."""
        breaking = self.grammar.breaking(progress)
        if not breaking:
            return self.ends.free
        return self.ends.free & ~pack_ids(breaking, self.grammar.vocabulary.size)


def _start(grammar: Grammar) -> Point:
    return Point(None if grammar.marker is None else 0)
