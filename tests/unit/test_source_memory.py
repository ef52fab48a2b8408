"""What draft sources remember of other requests, and where they must not use it."""

import asyncio

import numpy as np
import pytest

from drafter_svc.lookup import SuffixSource
from drafter_svc.recycling import RecyclingSource
from drafter_svc.source import Opening, Wanted
from outrider.continuations import Continuations
from outrider.sampling import Mode, SamplingParams
from outrider.sampling_state import SequenceState

STATE = SequenceState(SamplingParams(), 0, 100).state()
PROMPT, OUTPUT = (1, 2, 3), (4, 5, 6, 7)


def opening(mode: Mode, salt: str = "a", vocab_size: int = 100) -> Opening:
    return Opening(mode, SamplingParams(), 0, len(PROMPT), vocab_size, salt)


def draft(lease, token_ids, start=0, continuations=()) -> tuple[int, ...]:
    wanted = Wanted(start, tuple(token_ids), None, 4, STATE, continuations=tuple(continuations))
    return asyncio.run(lease.draft(wanted)).draft.token_ids


def said(*rows: tuple[int, int]) -> Continuations:
    return Continuations(tuple(i for i, _ in rows), np.array([[top] for _, top in rows]))


@pytest.mark.parametrize("mode", Mode)
def test_earlier_outputs_of_a_salt_are_copied_except_in_ratio(mode):
    """Drawn with the same seed they were drawn with the noise that decides this output, too."""
    source = SuffixSource()
    for _ in range(2):
        lease = source.open(opening(mode))
        draft(lease, [*PROMPT, *OUTPUT])
        lease.close()
    copied = draft(source.open(opening(mode)), [*PROMPT, 4, 5])
    assert copied == (() if mode is Mode.RATIO else (6, 7))
    assert draft(source.open(opening(mode, "b")), [*PROMPT, 4, 5]) == ()
    assert draft(source.open(opening(mode, vocab_size=99)), [*PROMPT, 4, 5]) == ()


@pytest.mark.parametrize("mode", Mode)
def test_continuations_of_a_salt_are_shared_except_in_ratio(mode):
    source = RecyclingSource()
    first, second = (source.open(opening(mode)) for _ in range(2))
    assert draft(first, PROMPT, continuations=[said((3, 8), (8, 9))]) == (8, 9)
    shared = () if mode is Mode.RATIO else (8, 9)
    assert draft(second, PROMPT) == shared
    assert draft(source.open(opening(mode)), PROMPT) == shared
    assert draft(source.open(opening(mode, "b")), PROMPT) == ()


def test_ids_beyond_the_vocabulary_are_not_learned():
    lease = RecyclingSource().open(opening(Mode.GREEDY))
    assert draft(lease, PROMPT, continuations=[said((3, 100)), said((2**32 - 1, 3))]) == ()
    assert len(lease.table) == 0
