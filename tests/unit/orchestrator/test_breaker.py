"""A worker that fails again and again is left alone, for longer every time, and tried again."""

from orchestrator.breaker import MAX_PAUSE_S, Breaker


def made(max_failures: int = 3) -> Breaker:
    return Breaker(max_failures, first_pause_s=2.0, jitter=lambda: 1.0)


def test_failures_in_a_row_open_it_and_a_pause_lets_one_try_pass():
    breaker = made()
    breaker.note_failure(0.0)
    breaker.note_failure(0.0)
    assert breaker.allows(0.0)
    breaker.note_failure(0.0)
    assert breaker.is_open
    assert not breaker.allows(1.9)
    assert breaker.allows(2.0)


def test_a_success_between_them_starts_anew():
    breaker = made()
    for _ in range(5):
        breaker.note_failure(0.0)
        breaker.note_failure(0.0)
        breaker.note_success()
    assert not breaker.is_open


def test_pauses_double_up_to_a_bound():
    breaker, now, pauses = made(1), 0.0, []
    for _ in range(12):
        breaker.note_failure(now)
        pauses.append(breaker.retry_at - now)
        now = breaker.retry_at
    assert pauses[:4] == [2.0, 4.0, 8.0, 16.0]
    assert pauses[-1] == MAX_PAUSE_S


def test_one_grave_failure_is_enough():
    breaker = made()
    breaker.note_failure(0.0, weight=3)
    assert breaker.is_open


def test_pauses_are_jittered():
    breakers = [Breaker(1, first_pause_s=10.0) for _ in range(50)]
    for breaker in breakers:
        breaker.note_failure(0.0)
    pauses = {breaker.retry_at for breaker in breakers}
    assert len(pauses) > 40
    assert all(5.0 <= pause <= 15.0 for pause in pauses)
