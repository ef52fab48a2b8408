"""RATIO emits exactly the target's law through three cycles, and every known mistake shows."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from outrider import noise, proposed, rules, wire
from outrider.distribution import RowSampling
from outrider.proposed import Proposed
from outrider.sampling import AcceptanceRule, proposal_key
from tests.statistical import ratio_path
from tests.statistical.law import ALPHA, NUM_DRAWS, TableLaw, sequence_p
from tests.statistical.ratio_path import (
    NUM_TOKENS,
    PROMPT,
    VOCAB_SIZE,
    Ahead,
    Setting,
    Tally,
    sample,
    sample_on_all_cores,
)

pytestmark = pytest.mark.statistical

TARGET = TableLaw.random(VOCAB_SIZE, seed=21, scale=1.0)
FRIENDLY = TableLaw(TARGET.logits + TableLaw.random(VOCAB_SIZE, seed=22, scale=0.7).logits)
ADVERSE = TableLaw(-TARGET.logits)
# Noise that two cycles share shows best between two tokens, drafted the wrong way round.
TWO = TableLaw.independent([2, 4, 0, 0, 0, 0])
TWO_SWAPPED = TableLaw.independent([4, 2, 0, 0, 0, 0])
BLOCK, REJECTION = AcceptanceRule.BLOCK, AcceptanceRule.REJECTION
MAX_Z = 5.0
Mutate = Callable[[pytest.MonkeyPatch], None]


def p_of(setting: Setting, sequences: np.ndarray) -> float:
    assert sequences.shape[1] == NUM_TOKENS
    return sequence_p(setting.target, PROMPT, sequences, temperature=setting.row.temperature)


@pytest.mark.parametrize(
    ("rule", "point_mass"),
    [(REJECTION, False), (BLOCK, False), (BLOCK, True)],
    ids=["rejection", "block", "point masses"],
)
@pytest.mark.parametrize("draft", [FRIENDLY, ADVERSE], ids=["friendly", "adverse"])
def test_three_cycles_follow_the_law(draft, rule, point_mass):
    # seeds 10**12.., draws as stated there, alpha 1e-6
    setting = Setting(TARGET, draft, rule, point_mass=point_mass)
    sequences, tally = sample_on_all_cores(setting, NUM_DRAWS, 10**12)
    kinds = ("accepted", "recovered", "bonus", "only", "ahead")
    assert all(tally.kinds[kind] > NUM_DRAWS / 100 for kind in kinds), tally.kinds
    assert p_of(setting, sequences) > ALPHA
    assert abs(tally.z()) < MAX_Z


@pytest.mark.parametrize("rule", [REJECTION, BLOCK])
@pytest.mark.parametrize(
    "changed",
    [
        pytest.param({"draft_row": RowSampling(temperature=1.6)}, id="a hotter draft"),
        pytest.param({"draft_row": RowSampling(top_k=2)}, id="a narrower draft"),
        pytest.param({"redraws": True}, id="re-drawn"),
    ],
)
def test_drafters_may_draw_as_they_like(rule, changed):
    # seeds 10**12.., draws 20,000, alpha 1e-6
    setting = replace(Setting(TARGET, FRIENDLY, rule), **changed)
    sequences, tally = sample_on_all_cores(setting, 20_000, 10**12)
    assert p_of(setting, sequences) > ALPHA
    assert abs(tally.z()) < MAX_Z


# --- mutants ----------------------------------------------------------------------------------


def residual_replaced_by_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rules, "corrected", lambda p, q, weight: p)


def draft_noise_reused_for_the_residual(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = noise.uniforms

    def reused(keys, a, positions, cycles, stream):
        if stream is not noise.Stream.RECOVERY:
            return draw(keys, a, positions, cycles, stream)
        own = [proposal_key(key) for key in keys]
        return draw(own, a, np.add(positions, a), cycles, noise.Stream.PROPOSAL)

    monkeypatch.setattr(noise, "uniforms", reused)


def proposals_keyed_by_position_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = proposed.proposal_uniforms
    monkeypatch.setattr(
        proposed,
        "proposal_uniforms",
        lambda keys, nodes, positions, cycles: draw(
            keys, [0] * len(keys), positions, [0] * len(keys)
        ),
    )


def nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Change nothing."""


def coarse_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counts of 8 in all, so that what rounding does to a law can be seen."""
    monkeypatch.setattr(wire, "TOTAL_COUNT", 8)


def q_quantised_after_sampling(monkeypatch: pytest.MonkeyPatch) -> None:
    coarse_counts(monkeypatch)
    quantise = wire.quantise_rows
    seen: list[np.ndarray] = []

    def remember(weights, lengths):
        seen.append(weights)
        return quantise(weights, lengths)

    def draw_unrounded(counts, uniforms):
        edges = np.cumsum(seen[-1], axis=1)
        at = uniforms * edges[:, -1]
        return [int((row <= u).sum()) for row, u in zip(edges, at, strict=True)]

    monkeypatch.setattr(wire, "quantise_rows", remember)
    monkeypatch.setattr(proposed, "draw_counts", draw_unrounded)


def cut_drafts(monkeypatch: pytest.MonkeyPatch, length: Callable[[Proposed], int]) -> None:
    draft = ratio_path.draft

    def cut(*arguments, **options):
        return [
            Ahead(each.path, head(each.proposed, 0, length(each.proposed)))
            for each in draft(*arguments, **options)
        ]

    monkeypatch.setattr(ratio_path, "draft", cut)


def head(proposed: Proposed, begin: int, end: int) -> Proposed:
    return Proposed(proposed.token_ids[begin:end], proposed.listed[begin:end], is_sampled=True)


def share(proposed: Proposed, node: int) -> float:
    ids, counts = proposed.listed[node]
    return float(counts[ids == proposed.token_ids[node]].item()) / wire.TOTAL_COUNT


def a_token_dropped_by_its_own_q(monkeypatch: pytest.MonkeyPatch) -> None:
    def length(proposed: Proposed) -> int:
        unsure = [i for i in range(len(proposed.token_ids)) if share(proposed, i) < 0.35]
        return min(unsure, default=len(proposed.token_ids))

    cut_drafts(monkeypatch, length)


def stop_behind_an_unsure_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """The honest sister: the unsure token itself stays."""

    def length(proposed: Proposed) -> int:
        unsure = [i for i in range(len(proposed.token_ids)) if share(proposed, i) < 0.35]
        return min(unsure, default=len(proposed.token_ids)) + 1

    cut_drafts(monkeypatch, length)


def wrong_temperature_on_q(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens are drawn at the request's temperature, but the counts say temperature 2."""
    draw = ratio_path.propose

    def told_hotter(logits, rows, places, **options):
        drawn = draw(logits, rows, places, **options)
        hot = draw(logits, [RowSampling(temperature=2.0)] * len(rows), places, **options)
        return [replace(d, distribution=h.distribution) for d, h in zip(drawn, hot, strict=True)]

    monkeypatch.setattr(ratio_path, "propose", told_hotter)


def stop_at_the_first_failure_in_block(monkeypatch: pytest.MonkeyPatch) -> None:
    count = rules.num_accepted
    monkeypatch.setattr(
        rules,
        "num_accepted",
        lambda is_block, passed, lengths: count(np.zeros_like(is_block), passed, lengths),
    )


def a_late_block_used_in_the_next_cycle(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left of a judged block is proposed again at the positions it was drawn for."""
    before = ratio_path.drafts_of

    def late(setting, runs, cycle, tally: Tally):
        chosen = before(setting, runs, cycle, tally)
        for i, run in enumerate(runs):
            block, kept = run.last
            left = head(block, kept + 1, len(block.token_ids))
            chosen[i] = left if left.token_ids else chosen[i]
        return chosen

    monkeypatch.setattr(ratio_path, "drafts_of", late)


def a_lying_drafter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names the first listed id every time, and gives honest counts."""
    draft = ratio_path.draft

    def lie(*arguments, **options):
        return [
            Ahead(each.path, replace(each.proposed, token_ids=firsts(each.proposed)))
            for each in draft(*arguments, **options)
        ]

    monkeypatch.setattr(ratio_path, "draft", lie)


def firsts(proposed: Proposed) -> tuple[int, ...]:
    return tuple(int(ids[0]) for ids, _ in proposed.listed)


@pytest.mark.parametrize(
    ("mutate", "setting"),
    [
        (residual_replaced_by_the_target, Setting(TARGET, FRIENDLY, REJECTION)),
        (draft_noise_reused_for_the_residual, Setting(TARGET, FRIENDLY, REJECTION)),
        (proposals_keyed_by_position_alone, Setting(TWO, TWO_SWAPPED, BLOCK, lengths=(3,))),
        (q_quantised_after_sampling, Setting(TARGET, FRIENDLY, REJECTION)),
        (a_token_dropped_by_its_own_q, Setting(TARGET, FRIENDLY, REJECTION)),
        (wrong_temperature_on_q, Setting(TARGET, FRIENDLY, REJECTION)),
        (stop_at_the_first_failure_in_block, Setting(TARGET, FRIENDLY, BLOCK)),
        (a_late_block_used_in_the_next_cycle, Setting(TWO, TWO_SWAPPED, BLOCK, lengths=(3,))),
        (a_lying_drafter, Setting(TARGET, FRIENDLY, REJECTION)),
    ],
)
def test_a_mutant_fails_the_law(monkeypatch, mutate: Mutate, setting: Setting):
    # seeds 10**12.., draws 10,000, alpha 1e-6
    mutate(monkeypatch)
    sequences, _ = sample(setting, 10_000, 10**12)
    assert p_of(setting, sequences) < ALPHA


@pytest.mark.parametrize(
    ("mutate", "setting"),
    [
        (a_lying_drafter, Setting(TARGET, FRIENDLY, REJECTION, redraws=True)),
        (coarse_counts, Setting(TARGET, FRIENDLY, REJECTION)),
        (stop_behind_an_unsure_token, Setting(TARGET, FRIENDLY, BLOCK)),
        (nothing, Setting(TWO, TWO_SWAPPED, BLOCK, lengths=(3,))),
    ],
)
def test_its_honest_sister_passes(monkeypatch, mutate: Mutate, setting: Setting):
    # seeds 10**12.., draws 20,000, alpha 1e-6
    mutate(monkeypatch)
    sequences, tally = sample(setting, 20_000, 10**12)
    assert p_of(setting, sequences) > ALPHA
    assert abs(tally.z()) < MAX_Z
