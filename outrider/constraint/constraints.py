"""The constraints of one target's requests, compiled once and kept."""

import asyncio
import threading
from collections import OrderedDict

from llguidance import LLParserLimits
from tokenizers import Tokenizer

from outrider.constraint.grammar import Grammar, parser_limits
from outrider.constraint.text import ConstrainedText
from outrider.constraint.vocabulary import Vocabulary
from outrider.errors import InvalidField
from outrider.sampling import Constraint, SamplingParams

MAX_KEPT = 32


class Constraints:
    """Opens texts under constraints. Safe to use from several threads.

    The first constraint takes the time to read the tokenizer, about a second, and a new one up to
    some hundred milliseconds: not for an event loop.
    """

    __slots__ = ("_kept", "_limits", "_lock", "_tokenizer", "_vocabulary")

    def __init__(self, tokenizer: Tokenizer, limits: LLParserLimits | None = None) -> None:
        self._tokenizer = tokenizer
        self._limits = limits or parser_limits()
        self._lock = threading.Lock()
        self._vocabulary: Vocabulary | None = None
        self._kept: OrderedDict[Constraint, Grammar] = OrderedDict()

    def open(self, sampling: SamplingParams) -> ConstrainedText | None:
        """Return the text of a request before its first token, None if it has no constraint.

        ``sampling`` is resolved: its stop ids are all ids that end the output.
        Raises: InvalidField naming the parameter that is wrong.
        """
        constraint = sampling.constraint
        if constraint is None:
            return None
        if not sampling.stop_token_ids:
            limit = "needed where a constraint is: an id that ends the text, EOS or another"
            raise InvalidField("sampling_params.stop_token_ids", limit)
        return ConstrainedText.begin(self._grammar(constraint), sampling.stop_token_ids)

    async def opened(self, sampling: SamplingParams) -> ConstrainedText | None:
        """Return what ``open`` does without holding up the event loop."""
        if sampling.constraint is None:
            return None
        return await asyncio.to_thread(self.open, sampling)

    def _grammar(self, constraint: Constraint) -> Grammar:
        with self._lock:
            grammar = self._kept.get(constraint)
            if grammar is None:
                grammar = Grammar(constraint, self._read(constraint), self._limits)
                self._kept[constraint] = grammar
                while len(self._kept) > MAX_KEPT:
                    self._kept.popitem(last=False)
            self._kept.move_to_end(constraint)
        return grammar

    def _read(self, constraint: Constraint) -> Vocabulary:
        if self._vocabulary is None:
            try:
                self._vocabulary = Vocabulary.of(self._tokenizer)
            except ValueError as error:
                limit = f"not possible with the tokenizer of this model: {error}"
                raise InvalidField(f"sampling_params.{constraint.kind.value}", limit) from error
        return self._vocabulary
