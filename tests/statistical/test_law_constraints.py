"""A constraint masks each row by the draft tokens before it; the law is the masked target's."""

from functools import partial

import numpy as np
import pytest
import regex

from outrider.errors import InvalidField
from outrider.sampling import AcceptanceRule, Constraint, ConstraintKind, SamplingParams
from tests.statistical import ratio_path
from tests.statistical.law import (
    ALPHA,
    Floats,
    TableLaw,
    chi_square_p,
    joint_probs,
    sequence_counts,
)
from tests.statistical.ratio_path import (
    NUM_TOKENS,
    PROMPT,
    TEXTS,
    VOCAB_SIZE,
    Setting,
    sample,
    sample_on_all_cores,
    text_rows,
)

pytestmark = pytest.mark.statistical

TARGET = TableLaw.random(VOCAB_SIZE, seed=21, scale=1.0)
FRIENDLY = TableLaw(TARGET.logits + TableLaw.random(VOCAB_SIZE, seed=22, scale=0.7).logits)
STRANGE = TableLaw(TableLaw.random(VOCAB_SIZE, seed=23, scale=1.5).logits + [0, 0, 1.5, 0, 1.5, 0])
"""A draft table that is far from the target's, and fond of what is often not allowed."""
BLOCK, REJECTION = AcceptanceRule.BLOCK, AcceptanceRule.REJECTION
END = VOCAB_SIZE - 1
PATTERN = r"(?:ab?|b(?:ca)?c)*"
MARKER = "ca"


def constrained(after: str = "") -> SamplingParams:
    constraint = Constraint(ConstraintKind.REGEX, PATTERN, after=after)
    return SamplingParams(temperature=0.8, constraint=constraint, stop_token_ids=(END,))


WHOLE, BEHIND = constrained(), constrained(MARKER)


def allowed(sampling: SamplingParams, output: tuple[int, ...]) -> list[int]:
    """What may follow, by another library's partial matches; behind an end everything."""
    if END in output:
        return list(range(VOCAB_SIZE))
    assert sampling.constraint is not None
    after = sampling.constraint.after
    text = "".join(TEXTS[i] for i in output)
    found = []
    for token in range(VOCAB_SIZE):
        more = text if token == END else text + TEXTS[token]
        is_free = after not in more
        rest = more.partition(after)[2] if after else more
        matches = regex.fullmatch(PATTERN, rest, partial=token != END) is not None
        if (token != END and is_free and after) or (matches and not (after and is_free)):
            found.append(token)
    return found


def exact(sampling: SamplingParams) -> Floats:
    """Return the probability of every continuation."""
    return joint_probs(partial(next_probs, sampling), VOCAB_SIZE, NUM_TOKENS)


def next_probs(sampling: SamplingParams, output: tuple[int, ...]) -> Floats:
    text, choices = [*PROMPT, *output], allowed(sampling, output)
    weights = np.zeros(VOCAB_SIZE)
    weights[choices] = np.exp(TARGET.logits[text[-2], text[-1]] / sampling.temperature)[choices]
    return weights / weights.sum() if choices else weights


def p_of(sampling: SamplingParams, sequences: np.ndarray) -> float:
    counts, probs = sequence_counts(sequences, VOCAB_SIZE), exact(sampling)
    assert not counts[probs == 0].any(), "what cannot be"
    return chi_square_p(counts, probs)


def test_the_constraint_is_felt():
    probs = exact(WHOLE)
    assert abs(probs.sum() - 1) < 1e-9
    assert 0.2 < (probs > 0).mean() < 0.8
    assert exact(BEHIND)[probs == 0].sum() > 0.1


@pytest.mark.parametrize(
    ("rule", "sampling"),
    [(REJECTION, WHOLE), (BLOCK, WHOLE), (BLOCK, BEHIND)],
    ids=["rejection", "block", "block behind a marker"],
)
def test_the_law_is_kept(sampling: SamplingParams, rule: AcceptanceRule):
    # seeds 10**12.., draws 4,000, alpha 1e-6
    setting = Setting(TARGET, FRIENDLY, rule, sampling=sampling)
    sequences, tally = sample_on_all_cores(setting, 4_000, 10**12)
    assert all(tally.kinds[kind] > 100 for kind in ("accepted", "recovered", "bonus", "ahead"))
    assert p_of(sampling, sequences) > ALPHA


def test_copies_may_be_cut_to_what_is_legal():
    # seeds 10**12.., draws 4,000, alpha 1e-6
    setting = Setting(TARGET, STRANGE, REJECTION, sampling=WHOLE, point_mass=True, cuts=True)
    sequences, tally = sample_on_all_cores(setting, 4_000, 10**12)
    assert all(tally.kinds[kind] > 100 for kind in ("accepted", "recovered", "bonus", "ahead"))
    assert p_of(WHOLE, sequences) > ALPHA


@pytest.mark.parametrize("rule", [REJECTION, BLOCK])
def test_cutting_what_was_drawn_fails_the_law(rule: AcceptanceRule):
    """Contract 18: whether a drawn token stays must not depend on what it is."""
    # seeds 10**12.., draws 4,000, alpha 1e-6
    setting = Setting(TARGET, STRANGE, rule, sampling=WHOLE, cuts=True)
    sequences, _ = sample(setting, 4_000, 10**12)
    assert p_of(WHOLE, sequences) < ALPHA


def test_rows_of_the_committed_text_let_pass_what_cannot_be(monkeypatch: pytest.MonkeyPatch):
    """Of a run that is accepted at once the constraint would see nothing: case 38."""
    # seeds 10**12.., draws 500

    def mutant(sampling, context, token_ids):
        return text_rows(sampling, context, ()) * (len(token_ids) + 1)

    monkeypatch.setattr(ratio_path, "text_rows", mutant)
    with pytest.raises(InvalidField, match=r"id \d at \d of the output is not allowed there"):
        sample(Setting(TARGET, FRIENDLY, BLOCK, sampling=WHOLE), 500, 10**12)
