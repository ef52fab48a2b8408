"""The ids that a drafter may propose: those that the target says most."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from outrider.training.corpus import Example


@dataclass(frozen=True, slots=True)
class DraftVocabulary:
    """Ascending target ids, one for each row of the draft head.

    Shapes: ids [D] int64.
    """

    ids: torch.Tensor
    vocab_size: int

    @property
    def rows(self) -> torch.Tensor:
        """The row of every target id, -1 where it has none; [V] int64."""
        rows = torch.full((self.vocab_size,), -1, dtype=torch.int64)
        rows[self.ids] = torch.arange(len(self.ids))
        return rows

    def coverage(self, examples: Iterable[Example]) -> float:
        """Return the share of the target's tokens that can be proposed at all."""
        counts = _counts(examples)
        covered = set(self.ids.tolist())
        return sum(n for i, n in counts.items() if i in covered) / max(counts.total(), 1)


def choose_vocabulary(
    examples: Sequence[Example], *, size: int, vocab_size: int
) -> DraftVocabulary:
    """Return the most frequent ids of the answers, filled up with the lowest others.

    ``size`` 0 keeps the whole vocabulary.
    """
    if not 0 < size < vocab_size:
        return DraftVocabulary(torch.arange(vocab_size), vocab_size)
    counts = np.zeros(vocab_size)
    for token_id, number in _counts(examples).items():
        counts[token_id] = number
    chosen = np.argsort(-counts, kind="stable")[:size]
    return DraftVocabulary(torch.from_numpy(np.sort(chosen).astype(np.int64)), vocab_size)


def _counts(examples: Iterable[Example]) -> Counter[int]:
    counts: Counter[int] = Counter()
    for each in examples:
        counts.update(each.response_ids)
    return counts
