"""Replay against decoding that is done step by step."""

import random

import pytest

from outrider.training.replay import Replay


def decode(answer: list[int], say, num_draft_tokens: int) -> tuple[int, int]:
    """Return cycles and accepted tokens of greedy speculative decoding; ``say(prefix, n)``."""
    committed: list[int] = []
    cycles = accepted = 0
    while len(committed) < len(answer):
        draft = say(committed, num_draft_tokens)
        cycles += 1
        for token_id in draft:
            if len(committed) < len(answer) and answer[len(committed)] == token_id:
                committed.append(token_id)
                accepted += 1
            else:
                break
        if len(committed) < len(answer):
            committed.append(answer[len(committed)])
    return cycles, accepted


@pytest.mark.parametrize("seed", range(20))
def test_counts_what_decoding_would_count(seed):
    rng = random.Random(seed)
    num_draft_tokens = rng.randint(1, 5)
    answer = [rng.randrange(3) for _ in range(rng.randint(1, 40))]

    def guess(prefix: tuple[int, ...]) -> int:
        return random.Random(f"{seed}{prefix}").randrange(3)

    def say(committed: list[int], count: int) -> list[int]:
        drafted: list[int] = []
        for _ in range(count):
            drafted.append(guess(tuple(committed + drafted)))
        return drafted

    right = [guess(tuple(answer[:i])) == answer[i] for i in range(len(answer))]
    padded = right + [False] * num_draft_tokens
    replay = Replay(num_draft_tokens)
    replay.add([padded[i : i + num_draft_tokens] for i in range(len(answer))])
    cycles, accepted = decode(answer, say, num_draft_tokens)
    # Decoding that ends with an accepted token has no recovered token after it.
    assert replay.num_cycles == cycles
    assert sum(replay.accepted_at) == accepted
    assert replay.agreement == pytest.approx(sum(right) / len(right))
    assert replay.mean_acceptance_length == pytest.approx(1 + accepted / cycles)


def test_positions_are_rated_where_they_are_reached():
    replay = Replay(3)
    replay.add([[True, True, False], [False] * 3, [False] * 3, [True, False, False], [False] * 3])
    # Cycle one keeps 0 and 1 and takes 2 from the target; cycle two keeps 3 and fails at 4.
    assert replay.num_cycles == 2
    assert replay.accepted_at == [2, 1, 0]
    assert replay.reached_at == [2, 2, 1]
    assert replay.acceptance_by_position == [1.0, 0.5, 0.0]
