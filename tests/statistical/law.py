"""A target whose law is known exactly, and the test of samples against it."""

import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from scipy import stats

ALPHA = 1e-6
NUM_DRAWS = int(os.environ.get("OUTRIDER_LAW_DRAWS", "25000"))
"""Of the laws themselves; `make law-soak` draws 100,000. Mutants and their sisters state theirs."""
SMALLEST_EXPECTATION = 5.0

Floats = npt.NDArray[np.float64]
Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TableLaw:
    """A model whose next token depends on the last two.

    Shapes: logits [V, V, V]: of the next token after (second last, last).
    """

    logits: Floats

    @classmethod
    def random(cls, vocab_size: int, *, seed: int, scale: float = 1.2) -> "TableLaw":
        """Return a table of normal logits."""
        rng = np.random.default_rng(seed)
        return cls(rng.standard_normal((vocab_size,) * 3) * scale)

    @classmethod
    def independent(cls, weights: Sequence[float]) -> "TableLaw":
        """Return a table whose tokens do not depend on one another, in proportion to weights."""
        size = len(weights)
        with np.errstate(divide="ignore"):
            logits = np.log(np.array(weights, dtype=np.float64))
        return cls(np.broadcast_to(logits, (size,) * 3).copy())

    @property
    def vocab_size(self) -> int:
        return self.logits.shape[0]

    def rows(self, contexts: Ids) -> Floats:
        """Return the logits after contexts [N, >= 2], [N, V]."""
        return self.logits[contexts[:, -2], contexts[:, -1]]

    def sequence_probs(
        self, prompt: Sequence[int], length: int, *, temperature: float = 1.0
    ) -> Floats:
        """Return the exact probability of every continuation of a length, [V ** length].

        Continuations count up like numbers of ``length`` digits in base V, the first token highest.
        """
        scaled = np.exp(self.logits / temperature)
        probs = scaled / scaled.sum(-1, keepdims=True)
        contexts = np.array([list(prompt[-2:])])
        joint = np.ones(1)
        for _ in range(length):
            joint = (joint[:, None] * probs[contexts[:, 0], contexts[:, 1]]).ravel()
            last = np.repeat(contexts[:, 1], self.vocab_size)
            new = np.tile(np.arange(self.vocab_size), len(contexts))
            contexts = np.stack([last, new], axis=1)
        return joint


def sequence_counts(sequences: Ids, vocab_size: int) -> Ids:
    """Return how often each continuation occurs, in the order of ``sequence_probs``.

    Shapes: sequences [N, length].
    """
    length = sequences.shape[1]
    codes = sequences @ (vocab_size ** np.arange(length - 1, -1, -1))
    return np.bincount(codes, minlength=vocab_size**length)


def joint_probs(
    next_probs: Callable[[tuple[int, ...]], Floats], vocab_size: int, num_tokens: int
) -> Floats:
    """Return the probability of every sequence, in the order of ``sequence_counts``.

    ``next_probs`` gives the distribution [V] behind the tokens before; plain loops.
    """
    probs = []
    for tokens in itertools.product(range(vocab_size), repeat=num_tokens):
        joint = 1.0
        for depth, token in enumerate(tokens):
            joint *= float(next_probs(tokens[:depth])[token])
        probs.append(joint)
    return np.array(probs)


def chi_square_p(counts: Ids, probs: Floats) -> float:
    """Return the p-value of counts under exact probabilities; cells expected below 5 are merged.

    A count where the probability is 0 gives p = 0.
    """
    assert counts.shape == probs.shape
    if counts[probs == 0].any():
        return 0.0
    order = np.argsort(probs)
    order = order[probs[order] > 0]
    expected, observed = probs[order] * counts.sum(), counts[order].astype(np.float64)
    # Merge the smallest cells until their sum is large enough; the next cell helps where it is not.
    num_merged = int((expected < SMALLEST_EXPECTATION).sum())
    while 0 < num_merged < len(expected) and expected[:num_merged].sum() < SMALLEST_EXPECTATION:
        num_merged += 1
    if num_merged:
        expected = np.append(expected[num_merged:], expected[:num_merged].sum())
        observed = np.append(observed[num_merged:], observed[:num_merged].sum())
    assert len(expected) > 1, "too few samples for a test"
    expected *= observed.sum() / expected.sum()
    return float(stats.chisquare(observed, expected).pvalue)


def sequence_p(
    law: TableLaw, prompt: Sequence[int], sequences: Ids, *, temperature: float = 1.0
) -> float:
    """Return the p-value of sampled continuations [N, length] under the exact law."""
    probs = law.sequence_probs(prompt, sequences.shape[1], temperature=temperature)
    return chi_square_p(sequence_counts(sequences, law.vocab_size), probs)
