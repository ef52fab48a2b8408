"""Penalties and masks depend on the text, draft tokens included; the law is still exactly kept."""

from functools import partial

import numpy as np
import pytest

from outrider.sampling import AcceptanceRule, SamplingParams
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
    VOCAB_SIZE,
    Setting,
    sample,
    sample_on_all_cores,
    text_rows,
)

pytestmark = pytest.mark.statistical

TARGET = TableLaw.random(VOCAB_SIZE, seed=21, scale=1.0)
FRIENDLY = TableLaw(TARGET.logits + TableLaw.random(VOCAB_SIZE, seed=22, scale=0.7).logits)
BLOCK, REJECTION = AcceptanceRule.BLOCK, AcceptanceRule.REJECTION
TEMPERATURE = 0.8

PENALTIES = SamplingParams(
    temperature=TEMPERATURE,
    frequency_penalty=1.1,
    presence_penalty=0.7,
    repetition_penalty=1.4,
    logit_bias=((2, 0.5), (3, -0.5)),
)
MASKS = SamplingParams(
    temperature=TEMPERATURE,
    allowed_token_ids=(0, 1, 2, 3, 5),
    banned_token_ids=(3,),
    bad_token_ids=((1, 2), (5, 5), (0, 1, 0)),
    min_tokens=2,
    stop_token_ids=(1,),
)


def exact(sampling: SamplingParams) -> Floats:
    """Return the probability of every continuation, by the written formulas."""
    return joint_probs(partial(next_probs, sampling), VOCAB_SIZE, NUM_TOKENS)


def next_probs(sampling: SamplingParams, output: tuple[int, ...]) -> Floats:
    text = [*PROMPT, *output]
    logits = TARGET.logits[text[-2], text[-1]].copy()
    for token, value in sampling.logit_bias:
        logits[token] += value
    for token in set(text):
        scale = sampling.repetition_penalty
        logits[token] = logits[token] / scale if logits[token] > 0 else logits[token] * scale
    for token in set(output):
        logits[token] -= sampling.frequency_penalty * output.count(token)
        logits[token] -= sampling.presence_penalty
    denied = set(sampling.banned_token_ids)
    if sampling.allowed_token_ids:
        denied |= set(range(VOCAB_SIZE)) - set(sampling.allowed_token_ids)
    for *start, last in sampling.bad_token_ids:
        if text[len(text) - len(start) :] == start:
            denied.add(last)
    if len(output) < sampling.min_tokens:
        denied |= set(sampling.stop_token_ids)
    scaled = np.exp(logits / sampling.temperature)
    scaled[list(denied)] = 0.0
    return scaled / scaled.sum()


def p_of(sampling: SamplingParams, sequences: np.ndarray) -> float:
    return chi_square_p(sequence_counts(sequences, VOCAB_SIZE), exact(sampling))


@pytest.mark.parametrize("rule", [REJECTION, BLOCK])
@pytest.mark.parametrize("sampling", [PENALTIES, MASKS], ids=["penalties", "masks"])
def test_the_law_is_kept(sampling: SamplingParams, rule: AcceptanceRule):
    # seeds 10**12.., draws 10,000, alpha 1e-6
    setting = Setting(TARGET, FRIENDLY, rule, sampling=sampling)
    sequences, tally = sample_on_all_cores(setting, 10_000, 10**12)
    assert all(tally.kinds[kind] > 100 for kind in ("accepted", "recovered", "bonus", "ahead"))
    assert p_of(sampling, sequences) > ALPHA


def rows_of_the_committed_text(sampling, context, token_ids):
    """The usual mistake: what a draft token changes is not seen by the rows behind it."""
    return text_rows(sampling, context, ()) * (len(token_ids) + 1)


@pytest.mark.parametrize("rule", [REJECTION, BLOCK])
@pytest.mark.parametrize("sampling", [PENALTIES, MASKS], ids=["penalties", "masks"])
def test_rows_that_do_not_see_the_draft_fail_the_law(monkeypatch, sampling, rule):
    # seeds 10**12.., draws 4,000, alpha 1e-6
    monkeypatch.setattr(ratio_path, "text_rows", rows_of_the_committed_text)
    sequences, _ = sample(Setting(TARGET, FRIENDLY, rule, sampling=sampling), 4_000, 10**12)
    assert p_of(sampling, sequences) < ALPHA
