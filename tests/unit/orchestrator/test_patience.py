"""Nobody waits for a drafter that is late again and again, and everybody once it is not."""

from orchestrator.patience import FIRST_PAUSE_S, MAX_LATE, MAX_PAUSE_S, Patience


def late(patience: Patience, now: float, times: int = MAX_LATE) -> None:
    for _ in range(times):
        patience.note_late(now)


def test_a_few_late_drafts_in_a_row_end_the_waiting():
    patience = Patience()
    late(patience, 10.0, MAX_LATE - 1)
    assert patience.allows(10.0)
    patience.note_late(10.0)
    assert not patience.allows(10.0)
    assert patience.allows(10.0 + FIRST_PAUSE_S)


def test_a_draft_in_time_starts_anew():
    patience = Patience()
    late(patience, 10.0)
    patience.note_in_time()
    assert patience == Patience(resume_at=patience.resume_at)
    assert patience.allows(10.0)
    late(patience, 10.0, MAX_LATE - 1)
    assert patience.allows(10.0)


def test_pauses_grow_up_to_a_bound():
    patience, now, pauses = Patience(), 0.0, []
    late(patience, now, MAX_LATE - 1)
    for _ in range(8):
        patience.note_late(now)
        pauses.append(patience.resume_at - now)
        now = patience.resume_at
    assert pauses == sorted(pauses)
    assert (pauses[0], pauses[-1]) == (FIRST_PAUSE_S, MAX_PAUSE_S)
