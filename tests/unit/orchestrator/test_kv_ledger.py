"""The ledger trusts no more than what both it and the worker believe."""

import pytest

from orchestrator.kv_ledger import KVLedger


def test_a_worker_that_states_what_is_expected_needs_no_healing():
    ledger = KVLedger()
    ledger.expect(12)
    ledger.observe(12)
    assert (ledger.cache_length, ledger.num_heals) == (12, 0)


@pytest.mark.parametrize(
    ("expected", "stated", "kept"), [(12, 7, 7), (12, 0, 0), (12, 15, 12), (0, 3, 0)]
)
def test_a_difference_is_counted_and_the_smaller_length_kept(expected, stated, kept):
    ledger = KVLedger()
    ledger.expect(expected)
    ledger.observe(stated)
    assert (ledger.cache_length, ledger.num_heals) == (kept, 1)
    ledger.observe(kept)
    assert ledger.num_heals == 1


def test_a_wish_for_context_is_healing_too():
    ledger = KVLedger()
    ledger.expect(12)
    ledger.lower(5)
    assert (ledger.cache_length, ledger.num_heals) == (5, 1)
