"""The story of ``outrider trace fixture`` comes out of the functions that serve requests."""

import pytest

from outrider import acceptance, walkthrough
from outrider.acceptance import Decision
from outrider.sampling import AcceptanceRule
from outrider.walkthrough import TOKENS, compare, walk


def test_a_and_b_are_accepted_c_is_rejected_x_is_drawn_d_is_discarded():
    made = walk()
    assert [TOKENS[i] for i in made.draft.token_ids] == ["A", "B", "C", "D"]
    assert [row.accepted for row in made.trace.rows] == [True, True, False, False, False]
    assert [TOKENS[i] for i in made.committed] == ["A", "B", "X"]


def test_every_number_can_be_checked_by_hand():
    made = walk()
    for position, row in enumerate(made.trace.rows[:4]):
        token = made.draft.token_ids[position]
        p, q = walkthrough.TARGET[position][token], walkthrough.DRAFT[position][token]
        assert row.target_prob == pytest.approx(p, abs=1e-6)
        assert row.draft_prob == pytest.approx(q, abs=1e-4)  # in steps of 2**-16
        assert row.threshold == pytest.approx(min(1, p / q), abs=1e-4)
    corrected = made.trace.corrected
    assert corrected is not None
    # max(0, p - q) at the third position: A 0.05, X 0.35
    probs = dict(zip(corrected.token_ids, corrected.probs, strict=True))
    assert probs[TOKENS.index("X")] == pytest.approx(0.875, abs=1e-3)
    assert probs[TOKENS.index("A")] == pytest.approx(0.125, abs=1e-3)


@pytest.mark.parametrize("rule", [AcceptanceRule.REJECTION, AcceptanceRule.BLOCK])
def test_frequencies_agree_with_the_control(rule):
    # seeds 0.., draws 5,000
    assert compare(5_000, rule).agrees


def test_a_wrong_rule_disagrees(monkeypatch):
    def keep_everything(requests, logits, **sizes):
        made = verify(requests, logits, **sizes)
        return [
            Decision(tuple(range(len(r.draft_token_ids))), d.next_token_id, d.min_margin)
            for r, d in zip(requests, made, strict=True)
        ]

    verify = acceptance.verify_batch
    monkeypatch.setattr(walkthrough, "verify_batch", keep_everything)
    assert not compare(5_000).agrees
