"""Only the table changes a sequence's state, and only commits make its ids longer."""

import itertools

import pytest

from orchestrator.sequence import (
    TRANSITIONS,
    End,
    Event,
    FinishReason,
    IllegalTransition,
    Sequence,
    State,
)
from orchestrator.verdict import CommittedToken, Origin
from outrider.prefix import PrefixDigest

# What may happen, written down a second time: the table of the product must say the same.
ALLOWED = {
    State.WAITING: {Event.VERIFIER_FOUND: State.RUNNING, Event.ABORT: State.ABORTED},
    State.RUNNING: {
        Event.VERIFIER_LOST: State.RECOVERING,
        Event.ENDED: State.FINISHED,
        Event.ABORT: State.ABORTED,
    },
    State.RECOVERING: {Event.VERIFIER_FOUND: State.RUNNING, Event.ABORT: State.ABORTED},
    State.FINISHED: {},
    State.ABORTED: {},
}


def sequence(state: State = State.RUNNING, *, max_length: int = 10) -> Sequence:
    made = Sequence("s", (1, 2, 3), max_length)
    made.state = state
    return made


def tokens(*ids: int) -> list[CommittedToken]:
    return [CommittedToken(token_id, Origin.ONLY) for token_id in ids]


@pytest.mark.parametrize(
    ("state", "event"),
    list(itertools.product(State, Event)),
    ids=lambda value: value.value,
)
def test_every_pair_of_state_and_event(state, event):
    one = sequence(state)
    following = ALLOWED[state].get(event)
    if following is None:
        with pytest.raises(IllegalTransition, match=f"{event.value} in state {state.value}"):
            one.apply(event)
        assert one.state is state
    else:
        one.apply(event)
        assert one.state is following


def test_the_table_has_no_other_entries():
    pairs = {(state, event) for state, events in ALLOWED.items() for event in events}
    assert set(TRANSITIONS) == pairs


def test_a_commit_appends_ids_and_keeps_the_digest_running():
    one = sequence()
    one.commit(tokens(7, 8), None)
    one.commit(tokens(9), None)
    assert one.token_ids == [1, 2, 3, 7, 8, 9]
    assert one.output_ids == [7, 8, 9]
    assert (len(one), one.cycle, one.num_remaining) == (6, 2, 4)
    assert one.digest.digest() == PrefixDigest([1, 2, 3, 7, 8, 9]).digest()
    assert one.state is State.RUNNING
    assert not one.is_finished


def test_a_commit_with_an_end_finishes():
    one = sequence()
    end = End(FinishReason.STOP, token_id=7)
    one.commit(tokens(7), end)
    assert one.is_finished
    assert one.end is end
    with pytest.raises(IllegalTransition):
        one.apply(Event.ABORT)


@pytest.mark.parametrize("state", [s for s in State if s is not State.RUNNING])
def test_nothing_is_committed_unless_running(state):
    one = sequence(state)
    with pytest.raises(AssertionError):
        one.commit(tokens(7), None)
    assert one.token_ids == [1, 2, 3]


def test_nothing_is_committed_beyond_the_longest_length():
    one = sequence(max_length=4)
    with pytest.raises(AssertionError):
        one.commit(tokens(7, 8), None)
    assert one.token_ids == [1, 2, 3]


@pytest.mark.parametrize(("prompt", "max_length"), [((), 5), ((1, 2), 2), ((1, 2), 1)])
def test_a_sequence_has_a_prompt_and_room(prompt, max_length):
    with pytest.raises(AssertionError):
        Sequence("s", prompt, max_length)
