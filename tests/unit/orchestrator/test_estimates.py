"""What cycles cost and who shares a pass, learned from verdicts that are made up."""

import pytest

from orchestrator.estimates import DraftCost, Estimates, VerifyCost
from orchestrator.verdict import Origin, Verdict
from outrider.draft import Draft


def verdict(num_drafted: int, num_accepted: int = 0, **changed: object) -> Verdict:
    """A verdict of a step that was alone in its pass, which took 10 ms and 1 ms a row."""
    rows = 1 + num_drafted
    values: dict[str, object] = {
        "accepted_nodes": tuple(range(num_accepted)),
        "next_token_id": 9,
        "next_origin": Origin.RECOVERED,
        "invalid_draft": "",
        "cached_tokens": 0,
        "num_passes": 1,
        "queue_ms": 0.0,
        "compute_ms": 10.0 + rows,
        "round_trip_ms": 12.0 + rows,
        "margin": 0.5,
        "num_rows": rows,
        "rows_in_pass": rows,
        "num_leases": 1,
    }
    return Verdict(**(values | changed))  # type: ignore[arg-type]


def draft(num_tokens: int) -> Draft:
    return Draft(tuple(range(num_tokens)), "model")


def test_alone_a_draft_costs_its_own_rows():
    cost = VerifyCost()
    for num_tokens in (0, 4):
        cost.observe(draft(num_tokens), verdict(num_tokens))
    assert cost.num_sharing == 1
    assert cost.rows(4) == [1, 2, 3, 4, 5]
    assert cost.times_ms(4) == pytest.approx([13, 14, 15, 16, 17])


def test_in_company_every_sequence_pays_for_the_rows_of_all():
    cost = VerifyCost()
    shared = {"rows_in_pass": 20, "num_leases": 4, "compute_ms": 30.0}
    cost.observe(draft(4), verdict(4, **shared))
    assert cost.num_sharing == 4, "15 rows of others, 5 of a sequence"
    assert cost.rows(4) == [4, 8, 12, 16, 20]


def test_rows_of_prompts_do_not_grow_with_the_drafts():
    cost = VerifyCost()
    cost.observe(draft(4), verdict(4, rows_in_pass=105, num_leases=2))
    assert cost.num_sharing == 2, "no more than there are leases"
    assert cost.rows(2) == [95 + 2, 95 + 4, 95 + 6], "two leases, 95 rows of prompts"


def test_a_step_that_reads_a_prompt_tells_its_passs_time_and_nothing_of_cycles():
    cost = VerifyCost()
    prefill = verdict(0, num_rows=100, rows_in_pass=100, compute_ms=60.0)
    cost.observe(draft(0), prefill)
    assert cost.by_rows(100) == 60
    assert cost.own_rows.count == cost.beside.count == 0
    cost.observe(draft(0), verdict(0, num_passes=2, compute_ms=500.0))
    assert cost.by_rows(1) == 60, "the time of several passes is no pass's time"


def test_queueing_is_known_apart_from_passes():
    cost = VerifyCost()
    cost.observe(draft(0), verdict(0, queue_ms=30.0, round_trip_ms=45.0))
    assert cost.by_rows(1) == 11
    assert cost.beside.value == 34
    assert cost.times_ms(0) == [45]


def test_the_queue_is_averaged_and_the_pool_is_not():
    cost = VerifyCost()
    busy = verdict(0, num_leases=10, num_waiting=9, pool_usage=0.95)
    cost.observe(draft(0), busy)
    assert cost.queue_share.value < 0.2, "one full queue is no pressure yet"
    for _ in range(60):
        cost.observe(draft(0), busy)
    assert cost.queue_share.value > 0.8
    assert cost.pool_usage == 0.95
    cost.observe(draft(0), verdict(0, pool_usage=0.1))
    assert cost.pool_usage == 0.1


def test_a_draft_that_was_hidden_costs_nothing_at_any_length():
    cost = DraftCost()
    cost.wait.observe(4, 0.0)
    cost.compute.observe(4, 20.0)
    assert cost.waits_ms(8) == [0] * 9


@pytest.mark.parametrize("longest", range(12))
def test_there_is_a_wait_for_every_length(longest):
    for lengths in ((), (1,), (4,), (2, 8), (20,)):
        cost = DraftCost()
        for length in lengths:
            cost.wait.observe(length, 5.0)
        assert len(cost.waits_ms(longest)) == longest + 1


def test_a_draft_of_another_length_than_any_before_is_waited_for_by_what_it_takes_more_or_less():
    cost = DraftCost()
    cost.wait.observe(4, 7.0)
    cost.compute.observe(4, 20.0)
    assert cost.waits_ms(8) == [0, 0, 0, 2, 7, 12, 17, 22, 27]


def test_lanes_share_what_is_about_the_same_thing():
    known = Estimates()
    one, other = known.lane("t", "a:1", "model"), known.lane("t", "b:1", "model")
    assert one.verify is other.verify is known.verify("t")
    assert one.source is other.source
    assert one.draft is not other.draft
    assert known.lane("t", "a:1", "model").draft is one.draft
    assert known.lane("u", "a:1", "model").source is not one.source


def busy(num_leases: int) -> tuple[DraftCost, VerifyCost]:
    cost, verify = DraftCost(), VerifyCost()
    cost.wait.observe(4, 1.0)
    for num_tokens in (0, 4):
        verify.observe(draft(num_tokens), verdict(num_tokens, num_leases=num_leases))
    return cost, verify


def test_a_lone_stream_sees_what_every_verdict_teaches_of_cycles():
    cost, verify = busy(num_leases=1)
    before = cost.cycles_ms(4, verify)
    assert before[0] == verify.times_ms(4)[0]
    assert before[4] == pytest.approx(1.0 + verify.times_ms(4)[4])
    verify.observe(draft(4), verdict(4, compute_ms=30.0, round_trip_ms=32.0, num_leases=1))
    assert cost.cycles_ms(4, verify)[4] > before[4]


def test_many_streams_share_the_cost_of_cycles_for_half_a_cycle_of_all():
    cost, verify = busy(num_leases=8)
    before = cost.cycles_ms(4, verify)
    for _ in range(4):
        assert cost.cycles_ms(4, verify) == before
        verify.observe(draft(4), verdict(4, compute_ms=30.0, round_trip_ms=32.0, num_leases=8))
    verify.observe(draft(4), verdict(4, compute_ms=30.0, round_trip_ms=32.0, num_leases=8))
    assert cost.cycles_ms(4, verify)[4] > before[4]
    assert len(cost.cycles_ms(9, verify)) == 10
    assert cost.cycles_ms(2, verify) == cost.cycles_ms(9, verify)[:3]
