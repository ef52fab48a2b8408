"""A compiled constraint: what the library makes of it, and of the marker before it."""

import threading
from dataclasses import dataclass, field

from llguidance import LLMatcher, LLParserLimits

from outrider.constraint.marker import Marker
from outrider.constraint.notation import reason, write
from outrider.constraint.vocabulary import Vocabulary
from outrider.errors import InvalidField
from outrider.sampling import Constraint


def parser_limits(
    *, max_lexer_states: int = 50_000, max_items_in_row: int = 2_000
) -> LLParserLimits:
    """Return what a hostile constraint may use.

    About 0.3 s of one core to compile, as much for the worst masks, and 60 MiB. Objects of up to
    480 optional properties stay below.
    """
    return LLParserLimits(
        max_lexer_states=max_lexer_states,
        max_items_in_row=max_items_in_row,
        max_grammar_size=25_000,
        step_max_items=20_000,
        verbose_errors=False,
    )


@dataclass(slots=True)
class Grammar:
    """A constraint, compiled for a vocabulary; used by all sequences that have it.

    ``start`` is the library's parser before the first token, only to be copied: copies share what
    they learn of the tokens.

    Raises: InvalidField naming the parameter and what the library says against it.
    """

    constraint: Constraint
    vocabulary: Vocabulary
    limits: LLParserLimits
    text: str = field(init=False)
    start: LLMatcher = field(init=False)
    marker: Marker | None = field(init=False)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _spelled: dict[bytes, tuple[int, ...] | None] = field(default_factory=dict)
    _broken: dict[int, tuple[int, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.text = write(self.constraint)
        self.start = self._compile()
        after = self.constraint.after.encode()
        self.marker = Marker(after) if after else None
        parser = self.start.deep_copy()
        parser.compute_bitmask()
        if parser.is_error():
            raise InvalidField(self.parameter, f"no token can begin it ({self.why(parser)})")

    @property
    def parameter(self) -> str:
        """The parameter that says it."""
        return f"sampling_params.{self.constraint.kind.value}"

    def why(self, parser: LLMatcher) -> str:
        """Return what the library says of a parser that failed."""
        return reason(parser.get_error(), self.constraint.kind)

    def renew(self, failed: LLMatcher) -> None:
        """Compile again unless that was done since: what copies share is full at some time."""
        with self._lock:
            if self.start is failed:
                self.start = self._compile()

    def _compile(self) -> LLMatcher:
        parser = LLMatcher(self.vocabulary.tokenizer, self.text, log_level=0, limits=self.limits)
        if parser.is_error():
            raise InvalidField(self.parameter, self.why(parser))
        return parser

    def spell(self, rest: bytes) -> tuple[int, ...] | None:
        """Return ids that write what of a token lies behind the marker; None: it cannot be there.

        To the parser the ids behind the marker begin with these.
        """
        if rest not in self._spelled:
            ids = self.vocabulary.spell(rest)
            is_legal = ids is not None and self.start.deep_copy().try_consume_tokens(ids) == len(
                ids
            )
            self._spelled[rest] = tuple(ids) if ids is not None and is_legal else None
        return self._spelled[rest]

    def breaking(self, progress: int) -> tuple[int, ...]:
        """Return the ids that complete the marker and go on with what may not follow it."""
        assert self.marker is not None
        if progress not in self._broken:
            texts = self.vocabulary.texts
            beginnings, whole = self.marker.completes(progress), self.marker.text
            found = [i for i, t in enumerate(texts) if t.startswith(beginnings) or whole in t]
            rests = ((i, self.marker.read(progress, texts[i])[1]) for i in found)
            self._broken[progress] = tuple(
                i for i, rest in rests if rest is not None and self.spell(rest) is None
            )
        return self._broken[progress]
