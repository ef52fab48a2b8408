"""The exact law of one cycle, in rational numbers, through the rules that serve requests.

Every draft, every outcome of every test and every token behind it is enumerated with its
probability. What comes out is compared with the target's law by ``==``.
"""

import itertools
from collections import defaultdict
from collections.abc import Callable, Sequence
from fractions import Fraction

import numpy as np

from outrider import rules
from outrider.rules import Numbers
from outrider.sampling import AcceptanceRule

Prefix = tuple[int, ...]
Row = Sequence[Fraction]
Model = Callable[[Prefix], Row]
"""The distribution of the next token after a prefix."""


def random_model(vocab_size: int, *, seed: int, denominator: int = 12) -> Model:
    """Return a model whose every prefix has a distribution of its own, zeros among them."""

    def model(prefix: Prefix) -> Row:
        rng = np.random.default_rng([seed, len(prefix), *prefix])
        cuts = sorted(rng.integers(0, denominator + 1, vocab_size - 1).tolist())
        edges = [0, *cuts, denominator]
        return [Fraction(b - a, denominator) for a, b in itertools.pairwise(edges)]

    return model


def sequence_law(model: Model, length: int) -> dict[Prefix, Fraction]:
    """Return the probability of every sequence of a length."""
    law: dict[Prefix, Fraction] = {(): Fraction(1)}
    for _ in range(length):
        law = {
            (*prefix, token): mass * p
            for prefix, mass in law.items()
            for token, p in enumerate(model(prefix))
        }
    return {prefix: mass for prefix, mass in law.items() if mass}


def cycle_law(
    target: Model,
    draft: Model,
    *,
    rule: AcceptanceRule,
    num_draft_tokens: int,
    point_mass: bool = False,
) -> tuple[dict[Prefix, Fraction], Fraction]:
    """Return the law of the first K + 1 tokens, and how many draft tokens are kept on average.

    What a cycle leaves open the target continues by itself. With ``point_mass`` the draft is the
    most likely token of each row, judged as a token that was sure to come.
    """
    law: dict[Prefix, Fraction] = defaultdict(Fraction)
    kept = Fraction(0)
    length = num_draft_tokens + 1
    drafts = (
        {greedy(draft, num_draft_tokens): Fraction(1)}
        if point_mass
        else sequence_law(draft, num_draft_tokens)
    )
    for tokens, drafted in drafts.items():
        for num_accepted, mass, rest in outcomes(target, draft, tokens, rule, point_mass):
            kept += drafted * mass * num_accepted
            for token, p in enumerate(rest):
                prefix = (*tokens[:num_accepted], token)
                for output, q in continued(target, prefix, length).items():
                    law[output] += drafted * mass * p * q
    return {output: mass for output, mass in law.items() if mass}, kept


def greedy(model: Model, length: int) -> Prefix:
    prefix: Prefix = ()
    for _ in range(length):
        row = model(prefix)
        prefix = (*prefix, max(range(len(row)), key=lambda token: row[token]))
    return prefix


def continued(target: Model, prefix: Prefix, length: int) -> dict[Prefix, Fraction]:
    """Return the law of sequences that begin with a prefix."""
    rest = sequence_law(lambda tail: target((*prefix, *tail)), length - len(prefix))
    return {(*prefix, *tail): mass for tail, mass in rest.items()}


def outcomes(
    target: Model, draft: Model, tokens: Prefix, rule: AcceptanceRule, point_mass: bool
) -> list[tuple[int, Fraction, Row]]:
    """Return (accepted, probability, law of the next token) for a draft, zeros left out."""
    num = len(tokens)
    p = numbers([target(tokens[:i]) for i in range(num + 1)])  # [K + 1, V]
    q = numbers([draft(tokens[:i]) for i in range(num)])  # [K, V]
    if point_mass:
        q = numbers([[int(x == token) for x in range(p.shape[1])] for token in tokens])
    at = np.arange(num)
    ratios = (p[at, tokens] / q[at, tokens])[None]
    lengths = np.array([num])
    is_block = np.array([rule is AcceptanceRule.BLOCK and not point_mass])
    weights = np.full((1, num + 1), Fraction(1))
    thresholds = rules.rejection_thresholds(ratios)
    if is_block[0]:
        thresholds, weights = rules.block_thresholds(ratios, p[None, :num], q[None], lengths)
    found = []
    for passed in itertools.product([False, True], repeat=num):
        mass = Fraction(1)
        for h, passes in zip(thresholds[0], passed, strict=True):
            mass *= h if passes else 1 - h
        if not mass:
            continue
        accepted = int(rules.num_accepted(is_block, np.array([passed]), lengths)[0])
        behind = q[accepted][None] if accepted < num else numbers([[0] * p.shape[1]])
        weight = weights[:, accepted] if accepted < num else np.array([Fraction(1)])
        rest = rules.corrected(p[accepted][None], behind, weight)[0]
        found.append((accepted, mass, list(rest / sum(rest))))
    return found


def numbers(rows: Sequence[Row] | Sequence[Sequence[int]]) -> Numbers:
    return np.array([[Fraction(value) for value in row] for row in rows], dtype=object)
