"""Which rows of which jobs go into the next pass. Pure: it looks at counts only."""

from collections.abc import Sequence
from typing import Protocol, TypeVar

from outrider.engine.settings import EngineSettings


class Candidate(Protocol):
    """A job with blocks for all of its rows."""

    @property
    def rows_left(self) -> int: ...

    @property
    def order(self) -> tuple[int, int]:
        """(priority, arrival): lower goes first."""

    @property
    def num_together(self) -> int:
        """The last rows, which go into one pass or into none: a tree."""

    def fitting(self, count: int) -> int:
        """Rows that one pass can take of at most ``count``."""


C = TypeVar("C", bound=Candidate)


def choose(candidates: Sequence[C], settings: EngineSettings) -> list[tuple[C, int]]:
    """Rows for each job of the next pass, within the token budget.

    Running streams (few rows left) go first. A prompt gets what is left, but never so much that it
    stalls them; and they never fill the pass so that a prompt would not move at all.
    """
    ordered = sorted(candidates, key=lambda candidate: candidate.order)
    most = settings.max_decode_tokens
    streams = [c for c in ordered if c.rows_left - c.num_together <= most]
    prompts = [c for c in ordered if c.rows_left - c.num_together > most]
    budget = settings.max_tokens_per_pass
    chunk = min(settings.prefill_chunk_tokens, max(1, budget // 4)) if streams else budget
    chosen = _fill(streams, budget - chunk if prompts and budget > 1 else budget)
    used = sum(rows for _, rows in chosen)
    if streams:
        chunk = min(settings.prefill_chunk_tokens, budget - used)
    return chosen + _fill(prompts, chunk)


def _fill(candidates: Sequence[C], budget: int) -> list[tuple[C, int]]:
    chosen = []
    for candidate in candidates:
        if budget == 0:
            break
        rows = candidate.fitting(budget)
        if rows == 0:
            continue
        chosen.append((candidate, rows))
        budget -= rows
    return chosen
