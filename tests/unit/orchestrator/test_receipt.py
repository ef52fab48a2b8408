"""The receipt's figures obey the identities that benchmark tools rely on."""

import random

import pytest

from orchestrator.receipt import Stats
from orchestrator.verdict import CommittedToken, Origin, Verdict, committed_tokens
from outrider.draft import Draft


def verdict(num_accepted: int, kind: Origin, **changed: object) -> Verdict:
    values: dict[str, object] = {
        "accepted_nodes": tuple(range(num_accepted)),
        "next_token_id": 9,
        "next_origin": kind,
        "invalid_draft": "",
        "cached_tokens": 0,
        "num_passes": 1,
        "queue_ms": 1.0,
        "compute_ms": 2.0,
        "round_trip_ms": 5.0,
        "margin": 0.5,
    }
    return Verdict(**(values | changed))  # type: ignore[arg-type]


def run(stats: Stats, cycles: list[tuple[int, int]]) -> None:
    """Observe cycles of (draft tokens, accepted)."""
    for num_drafted, accepted in cycles:
        draft = Draft(tuple(range(num_drafted)), "model")
        kind = Origin.BONUS if accepted == num_drafted else Origin.RECOVERED
        decided = verdict(accepted, kind if num_drafted else Origin.ONLY)
        stats.observe(draft, decided, committed_tokens(draft.token_ids, decided))


def test_committed_tokens_are_the_accepted_ones_and_one_of_the_targets_own():
    decided = verdict(2, Origin.RECOVERED)
    assert committed_tokens((4, 5, 6), decided) == [
        CommittedToken(4, Origin.ACCEPTED),
        CommittedToken(5, Origin.ACCEPTED),
        CommittedToken(9, Origin.RECOVERED),
    ]
    assert committed_tokens((), verdict(0, Origin.ONLY)) == [CommittedToken(9, Origin.ONLY)]


def test_a_sequence_worked_out_by_hand():
    stats = Stats()
    run(stats, [(0, 0), (4, 4), (4, 1), (2, 0), (0, 0)])
    assert stats.num_cycles == 5
    assert stats.num_spec_steps == 3
    assert stats.num_draft_tokens == 10
    assert stats.num_accepted_draft_tokens == 5
    assert stats.num_output_tokens == 10  # 1 + 5 + 2 + 1 + 1
    assert stats.draft_acceptance_rate == 0.5
    assert stats.mean_acceptance_length == pytest.approx(1 + 5 / 3)
    assert stats.histogram() == [1, 1, 0, 0, 1]
    assert stats.num_target_passes == 5
    assert stats.num_passes_saved == 5
    assert stats.drafts_by_source == {"model": 3}
    assert (stats.verify_ms, stats.prefill_ms) == (15.0, 3.0)
    assert stats.draft_tokens_by_source == {"model": 10}
    assert stats.accepted_tokens_by_source == {"model": 5}
    assert stats.accepted_by_position() == [2, 1, 1, 1]
    assert stats.verify_ms == 15.0
    assert stats.network_ms == 10.0


def test_the_identities_hold_for_any_history():
    rng = random.Random(3)
    for _ in range(50):
        stats, cycles = Stats(), []
        for _ in range(rng.randrange(1, 30)):
            drafted = rng.randrange(6)
            cycles.append((drafted, rng.randrange(drafted + 1)))
        run(stats, cycles)
        speculative = [(k, a) for k, a in cycles if k]
        histogram = stats.histogram()
        assert sum(histogram) == stats.num_spec_steps == len(speculative)
        accepted = sum(i * count for i, count in enumerate(histogram))
        assert accepted == stats.num_accepted_draft_tokens == sum(a for _, a in cycles)
        assert stats.num_draft_tokens == sum(k for k, _ in cycles)
        # AIPerf: tokens per speculative cycle, the target's own counted.
        delivered = stats.num_accepted_draft_tokens + stats.num_spec_steps
        if speculative:
            assert stats.mean_acceptance_length == pytest.approx(delivered / stats.num_spec_steps)
            assert histogram[-1] > 0
        assert sum(stats.accepted_by_position()) == accepted
        assert stats.num_output_tokens == stats.num_cycles + accepted
        assert stats.num_passes_saved == accepted


def test_without_drafts_the_rates_are_those_of_plain_decoding():
    stats = Stats()
    run(stats, [(0, 0), (0, 0)])
    assert stats.draft_acceptance_rate == 0
    assert stats.mean_acceptance_length == 1
    assert stats.histogram() == []
    assert stats.num_passes_saved == 0


def test_an_accepted_token_behind_the_end_counts_as_drafted_only():
    stats = Stats()
    draft = Draft((1, 2, 3), "ngram")
    decided = verdict(3, Origin.BONUS)
    stats.observe(draft, decided, committed_tokens(draft.token_ids, decided)[:2])
    assert stats.num_accepted_draft_tokens == 2
    assert stats.num_draft_tokens == 3
    assert stats.num_output_tokens == 2
    assert stats.histogram() == [0, 0, 1]


def test_an_invalid_draft_is_a_fallback_and_no_speculation():
    stats = Stats()
    decided = verdict(0, Origin.ONLY, invalid_draft="parents[0]: 3 is not an earlier node or -1")
    stats.observe(Draft((1, 2), "model"), decided, committed_tokens((1, 2), decided))
    assert stats.fallbacks == {"invalid_draft": 1}
    assert stats.num_spec_steps == stats.num_draft_tokens == 0
    assert stats.histogram() == []
    assert not stats.draft_tokens_by_source


def test_the_prefill_alone_tells_what_the_prefix_cache_served():
    stats = Stats()
    first, later = verdict(0, Origin.ONLY, cached_tokens=32), verdict(0, Origin.ONLY)
    stats.observe(Draft(), first, committed_tokens((), first))
    stats.observe(Draft(), later, committed_tokens((), later))
    assert stats.cached_tokens == 32


def test_the_smallest_margin_and_no_negative_network_time():
    stats = Stats()
    for margin, round_trip_ms in ((0.5, 5.0), (0.2, 1.0), (0.9, 3.0)):
        decided = verdict(0, Origin.ONLY, margin=margin, round_trip_ms=round_trip_ms)
        stats.observe(Draft(), decided, committed_tokens((), decided))
    assert stats.min_margin == 0.2
    assert stats.network_ms == 2.0
