"""Draft probabilities decide: exact laws by enumeration, draws by hand, batches as alone."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
import torch

from outrider import noise, ratio, rules, wire
from outrider import proposed as proposed_module
from outrider.acceptance import ChainRequest, verify_batch
from outrider.distribution import RowSampling
from outrider.draft import Draft
from outrider.proposed import Proposed
from outrider.ratio import Chain
from outrider.sampling import AcceptanceRule, Mode, proposal_key
from tests.statistical.enumeration import cycle_law, random_model, sequence_law

BLOCK, REJECTION = AcceptanceRule.BLOCK, AcceptanceRule.REJECTION


# --- exact laws -------------------------------------------------------------------------------


@pytest.mark.parametrize("num_draft_tokens", [1, 2, 3])
@pytest.mark.parametrize(
    ("rule", "point_mass"),
    [(REJECTION, False), (BLOCK, False), (REJECTION, True), (BLOCK, True)],
    ids=["rejection", "block", "rejection of point masses", "block of point masses"],
)
@pytest.mark.parametrize("seed", range(4))
def test_a_cycle_has_exactly_the_targets_law(rule, point_mass, num_draft_tokens, seed):
    target, draft = random_model(3, seed=seed), random_model(3, seed=100 + seed)
    law, _ = cycle_law(
        target, draft, rule=rule, num_draft_tokens=num_draft_tokens, point_mass=point_mass
    )
    assert law == sequence_law(target, num_draft_tokens + 1)


def test_block_keeps_what_the_paper_says():
    """Two tokens, p = (1/3, 2/3), q = (2/3, 1/3), K = 2: 10/9 token by token, 11/9 by block."""
    target = lambda prefix: [Fraction(1, 3), Fraction(2, 3)]  # noqa: E731
    draft = lambda prefix: [Fraction(2, 3), Fraction(1, 3)]  # noqa: E731
    kept = {rule: cycle_law(target, draft, rule=rule, num_draft_tokens=2)[1] for rule in
            (REJECTION, BLOCK)}  # fmt: skip
    assert kept == {REJECTION: Fraction(10, 9), BLOCK: Fraction(11, 9)}


@pytest.mark.parametrize("seed", range(4))
def test_block_keeps_at_least_as_much(seed):
    target, draft = random_model(3, seed=seed), random_model(3, seed=100 + seed)
    kept = [
        cycle_law(target, draft, rule=rule, num_draft_tokens=3)[1] for rule in (REJECTION, BLOCK)
    ]
    assert kept[1] >= kept[0] > 0


def mutant(monkeypatch: pytest.MonkeyPatch, name: str, replaced: object) -> bool:
    """True if the target's law survives a change of the rules."""
    monkeypatch.setattr(rules, name, replaced)
    target, draft = random_model(3, seed=0), random_model(3, seed=100)
    law = cycle_law(target, draft, rule=BLOCK, num_draft_tokens=3)[0]
    other = cycle_law(target, draft, rule=REJECTION, num_draft_tokens=3)[0]
    truth = sequence_law(target, 4)
    return law == other == truth


def test_mutant_residual_replaced_by_the_target(monkeypatch):
    assert not mutant(monkeypatch, "corrected", lambda p, q, weight: p)


def test_mutant_stop_at_the_first_failure_in_block(monkeypatch):
    before = rules.num_accepted
    as_rejection = lambda is_block, passed, n: before(np.zeros_like(is_block), passed, n)  # noqa: E731
    assert not mutant(monkeypatch, "num_accepted", as_rejection)


def test_mutant_no_mass_outside_the_list(monkeypatch):
    """Residual masses that forget the ids which the draft does not list."""
    inside = lambda w, p, q: np.maximum(w[:, None] * p - q, 0)[:, :2].sum(-1)  # noqa: E731
    assert not mutant(monkeypatch, "residual_mass", inside)


def test_the_rules_themselves_pass(monkeypatch):
    assert mutant(monkeypatch, "corrected", rules.corrected)


# --- edges ------------------------------------------------------------------------------------


def test_c21_a_zero_residual_falls_back_to_the_target():
    p, q = np.array([[0.25, 0.75, 0.0]]), np.array([[0.25, 0.75, 0.0]])
    assert rules.corrected(p, q, np.ones(1)).tolist() == p.tolist()


def test_c21_a_token_without_target_probability_is_never_kept():
    """U < p / q, never <=: not even a uniform of 0 keeps a token with p = 0."""
    passed = np.zeros((1, 1)) < rules.rejection_thresholds(np.zeros((1, 1)))
    assert not passed.any()
    chain = chain_of((1,), [[(0, 1), (30000, 35536)]], rule=REJECTION)
    log_probs = torch.tensor([[0.5, 0.0, 0.5], [0.2, 0.3, 0.5]]).log()
    for key in range(200):
        made = ratio.verify([chain_of((1,), [[(0, 1), (30000, 35536)]], key=key)], log_probs)
        assert made.accepted[0] == 0
        assert made.next_ids[0] in (0, 2)
    assert len(chain) == 1


def test_a_draft_drawn_from_the_target_is_always_kept():
    """p / q = 1 keeps a token under every uniform."""
    counts = [[(0, 1, 2), (16384, 16384, 32768)]] * 3
    log_probs = torch.tensor([[0.25, 0.25, 0.5]] * 4).log()
    for rule in (REJECTION, BLOCK):
        chains = [chain_of((2, 0, 1), counts, rule=rule, key=key) for key in range(300)]
        made = ratio.verify(chains, log_probs.repeat(300, 1))
        assert (made.accepted == 3).mean() > 0.999  # float32 log probabilities round


def test_a_point_mass_is_judged_token_by_token_whatever_the_rule():
    assert not Chain(Proposed.of(Draft((1, 2))), BLOCK, 0, 0, 0).is_block
    assert chain_of((1,), [[(1,), (65536,)]]).is_block


@pytest.mark.parametrize("num_ids", [1, 3, 700])
def test_draw_ascending_inverts_the_cumulative_law(num_ids):
    rng = np.random.default_rng(3)
    weights = rng.random((500, num_ids)) * (rng.random((500, num_ids)) > 0.3)
    weights[:, -1] += 0.01
    uniforms = rng.random(500)
    ids, gaps = ratio.draw_ascending(weights, uniforms)
    edges = np.cumsum(weights, axis=1) / weights.sum(1, keepdims=True)
    for row in range(500):
        assert edges[row, ids[row]] >= uniforms[row] - 1e-12
        assert ids[row] == 0 or edges[row, ids[row] - 1] <= uniforms[row] + 1e-12
        assert weights[row, ids[row]] > 0
    assert (gaps >= 0).all()


def test_draw_ascending_at_the_ends():
    weights = np.array([[0.0, 0.5, 0.0, 0.5, 0.0]] * 2)
    ids, _ = ratio.draw_ascending(weights, np.array([2.0**-54, 1 - 2.0**-53]))
    assert ids.tolist() == [1, 3]


# --- noise and re-draws (contract 16 and 19) ----------------------------------------------------


def test_c16_uniforms_are_those_of_the_contract():
    counts = [[(0, 1, 2), (20000, 20000, 25536)]] * 2
    chain = chain_of((0, 1), counts, key=9, base=40, cycle=7)
    log_probs = torch.tensor([[0.3, 0.3, 0.4]] * 3).log()
    made = ratio.verify([chain], log_probs)
    expected = [float(noise.uniform(9, row, 40, 7, 2)) for row in range(2)]
    assert made.uniforms[0].tolist() == expected
    assert made.final_uniforms[0] == float(noise.uniform(9, int(made.accepted[0]), 40, 7, 3))


def test_the_proposal_key_is_never_the_seed():
    keys = [0, 1, 2**63, 2**64 - 1]
    derived = [proposal_key(key) for key in keys]
    assert len({*keys, *derived}) == 8
    assert derived == [proposal_key(key) for key in keys]


def test_c19_a_token_that_its_counts_do_not_draw_is_found():
    listed = [(0, 1, 2, 3), (16384, 16384, 16384, 16384)]
    uniforms = proposed_module.proposal_uniforms([5] * 3, range(3), range(10, 13), [2] * 3)
    drawn = tuple(int(uniform * 4) for uniform in uniforms)
    place = {"proposal_key": 5, "base_position": 10, "cycle": 2}
    assert proposed(drawn, [listed] * 3).redrawn(**place)[1] == ""
    for node in range(3):
        wrong = [*drawn]
        wrong[node] = (wrong[node] + 1) % 4
        right, reason = proposed(tuple(wrong), [listed] * 3).redrawn(**place)
        assert f"token_ids[{node}]: {wrong[node]}" in reason
        assert right.token_ids == drawn[: node + 1], "nothing is left behind a wrong token"
        assert len(right.listed) == node + 1
        assert right.is_corrected
    for other in ({"proposal_key": 6}, {"base_position": 11}, {"cycle": 3}):
        assert proposed(drawn, [listed] * 3).redrawn(**(place | other))[1], other
    assert Proposed.of(Draft(drawn)).redrawn(**place)[1] == "", "point masses are not drawn"


def test_a_corrected_token_that_is_kept_ends_the_cycle():
    logits = torch.zeros(3, 4)
    draft = proposed((1, 2), [[(0, 1, 2, 3), (16384,) * 4]] * 2)
    corrected = replace(draft, is_corrected=True)
    rows = (RowSampling(),) * 3
    for key in range(40):
        honest, own = (
            verify_batch([ChainRequest(d, rows, Mode.RATIO, key, 5)], logits, vocab_size=4)[0]
            for d in (draft, corrected)
        )
        if honest.num_accepted == 2:
            assert (own.num_accepted, own.next_token_id) == (1, 2)
        else:
            assert own == honest


# --- batches ----------------------------------------------------------------------------------


def test_every_chain_of_a_batch_is_decided_as_alone():
    """Different lengths, rules, truncations and numbers of listed ids, rejected at all places."""
    generator = torch.Generator().manual_seed(8)
    rng = np.random.default_rng(8)
    requests, parts = [], []
    for i in range(60):
        num = i % 5
        logits = torch.randn(num + 1, 50, generator=generator) * 2
        row = [RowSampling(), RowSampling(temperature=0.7, top_p=0.8), RowSampling(top_k=3)][i % 3]
        tokens, listed = [], []
        for depth in range(num):
            size = int(rng.integers(1, 9))
            top = logits[depth, :45].topk(size).indices.tolist()
            ids = [int(x) for x in rng.permutation(top)]
            counts = wire.quantise(ids, rng.random(size) + 0.1)
            tokens.append(int(rng.choice(ids)))
            listed.append((ids, counts))
        draft = proposed(tuple(tokens), listed) if i % 4 else Proposed.of(Draft(tuple(tokens)))
        rule = BLOCK if i % 2 else REJECTION
        mode = Mode.COUPLED if i % 7 == 6 else Mode.RATIO
        rows = (row,) * (num + 1)
        requests.append(ChainRequest(draft, rows, mode, 1000 + i, 20 + i, cycle=i, rule=rule))
        parts.append(logits)
    sizes = {"vocab_size": 45, "head_size": 8}
    together = verify_batch(requests, torch.cat(parts), **sizes)
    alone = [verify_batch([r], part, **sizes)[0] for r, part in zip(requests, parts, strict=True)]
    assert together == alone
    assert {d.num_accepted for d in together} >= {0, 1, 2, 3}
    assert all(d.min_margin >= 0 for d in together)


def test_without_a_draft_the_token_is_the_inverse_of_the_targets_law():
    logits = torch.randn(1, 50, generator=torch.Generator().manual_seed(9))
    request = ChainRequest(Proposed(), (RowSampling(),), Mode.RATIO, 5, 30, cycle=4)
    (decision,) = verify_batch([request], logits, vocab_size=45)
    uniform = float(noise.uniform(5, 0, 30, 4, noise.Stream.RECOVERY))
    edges = logits[0, :45].double().softmax(-1).cumsum(-1)
    assert decision.next_token_id == int((edges <= uniform).sum())
    assert decision.num_accepted == 0


def chain_of(
    tokens: tuple[int, ...],
    listed: list,
    *,
    rule: AcceptanceRule = BLOCK,
    key: int = 1,
    base: int = 10,
    cycle: int = 3,
) -> Chain:
    return Chain(proposed(tokens, listed), rule, key, base, cycle)


def proposed(tokens: tuple[int, ...], listed: list) -> Proposed:
    return Proposed.of(Draft(tokens, "model", tuple(wire.pack(*each) for each in listed)))
