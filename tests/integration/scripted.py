"""Scripted drafters: draft sources that know what the target will say and use it as told."""

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from prometheus_client import CollectorRegistry

from drafter_svc.__main__ import Bound, _register, lookup_identity
from drafter_svc.settings import DrafterSettings
from drafter_svc.source import Block, Opening, Source, Wanted
from outrider.draft import Draft
from outrider.sampling import Mode
from outrider.serving.server import Register

Guess = Callable[[Sequence[int], int], int]
"""What is drafted at a position of the output, given the whole true output."""


def oracle(truth: Sequence[int], at: int) -> int:
    """Always right."""
    return truth[at]


def wrong(truth: Sequence[int], at: int) -> int:
    """Never right; the id still exists."""
    return truth[at] ^ 1


def alt(truth: Sequence[int], at: int) -> int:
    """Right at even positions, wrong at odd ones."""
    return oracle(truth, at) if at % 2 == 0 else wrong(truth, at)


def script(token_ids: Sequence[int]) -> Guess:
    """The same list over and over, legal or not."""
    return lambda truth, at: token_ids[at % len(token_ids)]


GUESSES: Mapping[str, Guess] = {"oracle": oracle, "wrong": wrong, "alt": alt}


@dataclass(slots=True)
class Book:
    """What the target says after each prompt, by prompt and noise key (0 in GREEDY)."""

    outputs: dict[tuple[tuple[int, ...], int], tuple[int, ...]] = field(default_factory=dict)

    def learn(self, prompt_ids: Sequence[int], output_ids: Sequence[int], *, key: int = 0) -> None:
        """Note an output; a longer one that is known already stays."""
        place = tuple(prompt_ids), key
        if len(output_ids) > len(self.outputs.get(place, ())):
            self.outputs[place] = tuple(output_ids)

    def truth(self, prompt_ids: Sequence[int], key: int) -> tuple[int, ...]:
        """Return the output, empty if it was never learned."""
        return self.outputs.get((tuple(prompt_ids), key), ())


@dataclass(slots=True)
class ScriptedSource:
    """Drafts by a guess; foresees the outcome of a pending draft, so that no cycle goes without.

    ``excess`` tokens more than wanted are proposed.
    """

    name: str
    guess: Guess
    book: Book
    excess: int = 0
    needs_tokenizer: bool = False
    num_continuations: int = 0
    feature_layers: tuple[int, ...] = ()
    feature_width: int = 0
    num_open: int = 0

    def open(self, opening: Opening) -> "ScriptedLease":
        """Begin with nothing told."""
        self.num_open += 1
        return ScriptedLease(self, opening)


@dataclass(slots=True)
class ScriptedLease:
    """The ids that were told of one sequence."""

    source: ScriptedSource
    opening: Opening
    ids: tuple[int, ...] = ()

    @property
    def cache_length(self) -> int:
        """All ids that were told are kept."""
        return len(self.ids)

    async def draft(self, wanted: Wanted) -> Block:
        """Propose for the outcome that the truth foretells."""
        self.ids = self.ids[: wanted.start] + wanted.token_ids
        prompt_ids = self.ids[: self.opening.num_prompt_tokens]
        key = 0 if self.opening.mode is Mode.GREEDY else self.opening.noise_key
        truth = self.source.book.truth(prompt_ids, key)
        at = len(self.ids) - len(prompt_ids)
        path: tuple[int, ...] = ()
        if wanted.pending is not None:
            path = foretold(truth[at:], wanted.pending)
            at += len(path)
        end = min(at + wanted.num_draft_tokens + self.source.excess, len(truth))
        draft = tuple(self.source.guess(truth, each) for each in range(at, end))
        return Block(path, Draft(draft, self.source.name))

    def close(self) -> None:
        """Tell the source."""
        self.source.num_open -= 1


def foretold(truth: Sequence[int], pending: Sequence[int]) -> tuple[int, ...]:
    """Return what the target will commit when it verifies a draft."""
    num_right = 0
    while num_right < min(len(truth), len(pending)) and truth[num_right] == pending[num_right]:
        num_right += 1
    return tuple(truth[: num_right + 1])


@asynccontextmanager
async def open_scripted(
    book: Book, guesses: Mapping[str, Guess] = GUESSES, *, excess: Mapping[str, int] | None = None
) -> AsyncIterator[Register]:
    """The real drafter service over scripted sources, one a guess."""
    sources: dict[str, Source] = {
        name: ScriptedSource(name, guess, book, (excess or {}).get(name, 0))
        for name, guess in guesses.items()
    }
    settings = DrafterSettings(name="scripted")
    yield _register(settings, sources, Bound(lookup_identity(settings)), CollectorRegistry())
