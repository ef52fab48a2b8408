"""How often draft tokens are kept is what the laws say, and what comes out is the target's law."""

import numpy as np
import pytest
import torch

from outrider import distribution
from outrider.acceptance import ChainRequest, verify_batch
from outrider.distribution import RowSampling
from outrider.draft import Draft
from outrider.lookup.ngram import NgramIndex
from outrider.proposal import Place, propose
from outrider.proposed import Proposed
from outrider.sampling import AcceptanceRule, Mode, proposal_key
from tests.statistical.law import TableLaw, chi_square_p

pytestmark = pytest.mark.statistical

VOCAB_SIZE = 6
NUM_DRAWS = 20_000
BATCH = 4_000
ALPHA = 1e-3
RULES = [AcceptanceRule.REJECTION, AcceptanceRule.BLOCK]
TARGET = TableLaw.random(VOCAB_SIZE, seed=31, scale=1.0)
DRAFT = TableLaw(TARGET.logits + TableLaw.random(VOCAB_SIZE, seed=32, scale=0.7).logits)
CONTEXT = (2, 5)


def processed(law: TableLaw, row: RowSampling, context: np.ndarray) -> np.ndarray:
    """Return the processed probabilities after contexts, [N, V]."""
    logits = torch.tensor(law.rows(context), dtype=torch.float32)
    log_probs = distribution.log_probs(logits, [row] * len(context), vocab_size=VOCAB_SIZE)
    return log_probs.double().exp().numpy()


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(
    "row",
    [
        RowSampling(),
        RowSampling(temperature=0.7, top_k=3),
        RowSampling(top_p=0.7),
        RowSampling(temperature=1.3, top_k=4, top_p=0.9),
    ],
    ids=["T 1", "T 0.7, top_k 3", "top_p 0.7", "T 1.3, top_k 4, top_p 0.9"],
)
def test_processed_laws_decide_on_both_sides(row: RowSampling, rule: AcceptanceRule):
    """Case 06: the ratio is of processed probabilities, and the law is the processed one.

    A draft token, then the token behind it: first token and pair are compared with the exact law,
    the acceptance rate with the overlap of the two laws.
    """
    # seeds 10**12.., draws 20,000, alpha 1e-3
    counts, num_accepted = np.zeros((VOCAB_SIZE,) * 2, dtype=np.int64), 0
    for start in range(0, NUM_DRAWS, BATCH):
        keys = [10**12 + start + i for i in range(BATCH)]
        draft_logits = torch.tensor(DRAFT.rows(np.array([CONTEXT])), dtype=torch.float32)
        proposals = propose(
            draft_logits.repeat(BATCH, 1),
            [row] * BATCH,
            [Place(proposal_key(key), 2) for key in keys],
            mode=Mode.RATIO,
            vocab_size=VOCAB_SIZE,
        )
        drafted = [Draft((p.token_id,), "model", (p.distribution,)) for p in proposals]
        contexts = [c for d in drafted for c in (CONTEXT, (CONTEXT[1], d.token_ids[0]))]
        requests = [
            ChainRequest(Proposed.of(d), (row,) * 2, Mode.RATIO, key, 2, 0, rule)
            for d, key in zip(drafted, keys, strict=True)
        ]
        logits = torch.tensor(TARGET.rows(np.array(contexts)), dtype=torch.float32)
        decisions = verify_batch(requests, logits, vocab_size=VOCAB_SIZE, head_size=3)
        outputs = [
            [*d.token_ids[: made.num_accepted], made.next_token_id]
            for d, made in zip(drafted, decisions, strict=True)
        ]
        num_accepted += sum(made.num_accepted for made in decisions)
        outputs = continued(outputs, keys, row)
        np.add.at(counts, tuple(np.array(outputs).T), 1)
    p = processed(TARGET, row, np.array([CONTEXT]))[0]
    pair = p[:, None] * processed(
        TARGET, row, np.array([[CONTEXT[1], first] for first in range(VOCAB_SIZE)])
    )
    for seen, exact in ((counts.sum(1), p), (counts.ravel(), pair.ravel())):
        assert np.abs(seen / NUM_DRAWS - exact).sum() / 2 < 0.02
        assert chi_square_p(seen, exact) > ALPHA
    overlap = np.minimum(p, processed(DRAFT, row, np.array([CONTEXT]))[0]).sum()
    assert num_accepted / NUM_DRAWS == pytest.approx(overlap, abs=0.01)


def continued(outputs: list[list[int]], keys: list[int], row: RowSampling) -> list[list[int]]:
    """Give every output a second token, from a cycle without a draft."""
    short = [i for i, output in enumerate(outputs) if len(output) < 2]
    contexts = np.array([(CONTEXT[1], outputs[i][0]) for i in short])
    logits = torch.tensor(TARGET.rows(contexts), dtype=torch.float32)
    requests = [ChainRequest(Proposed(), (row,), Mode.RATIO, keys[i], 3, 1) for i in short]
    for i, made in zip(
        short, verify_batch(requests, logits, vocab_size=VOCAB_SIZE, head_size=3), strict=True
    ):
        outputs[i].append(made.next_token_id)
    return [output[:2] for output in outputs]


@pytest.mark.parametrize("rule", [*RULES, AcceptanceRule.COUPLED])
def test_a_copied_token_is_kept_as_often_as_the_target_would_say_it(rule: AcceptanceRule):
    """Case 07: a drafter without probabilities is a point mass, not a certainty."""
    # seeds 10**12.., draws 20,000
    prompt = [1, 2, 0, 1, 2, 0, 1, 2]
    index = NgramIndex()
    index.extend(prompt)
    draft = Draft(tuple(index.propose(1)), "ngram")
    assert draft.token_ids == (0,)
    law = TableLaw.independent([0.2, 0.3, 0.1, 0.1, 0.1, 0.2])
    mode = Mode.COUPLED if rule is AcceptanceRule.COUPLED else Mode.RATIO
    logits = torch.tensor(law.rows(np.array([[1, 2], [2, 0]])), dtype=torch.float32)
    counts, num_accepted = np.zeros(VOCAB_SIZE, dtype=np.int64), 0
    for start in range(0, NUM_DRAWS, BATCH):
        requests = [
            ChainRequest(
                Proposed.of(draft), (RowSampling(),) * 2, mode, 10**12 + start + i, 8, 1, rule
            )
            for i in range(BATCH)
        ]
        for made in verify_batch(
            requests, logits.repeat(BATCH, 1), vocab_size=VOCAB_SIZE, head_size=3
        ):
            num_accepted += made.num_accepted
            counts[0 if made.num_accepted else made.next_token_id] += 1
    assert counts[0] / NUM_DRAWS == pytest.approx(0.2, abs=0.01)
    assert num_accepted == counts[0], "a kept token is the only way to emit it"
    assert chi_square_p(counts, np.exp(law.logits[0, 0])) > ALPHA
