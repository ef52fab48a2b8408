"""Batches: everything is read, in an order that the seed and the step decide."""

from collections import Counter

import pytest

from outrider.training.batches import BatchPlan, batches_of, make_batch
from outrider.training.corpus import Example


def example(number: int, num_prompt: int, num_answer: int) -> Example:
    return Example((number,) * num_prompt, (number,) * num_answer, number % 2 == 0, False)


EXAMPLES = [example(i, 1 + i % 7, 2 + i * i % 23) for i in range(1, 101)]
NUM_TOKENS = sum(len(each) for each in EXAMPLES)


def test_an_epoch_reads_every_example_once_and_wastes_little():
    plan = BatchPlan(EXAMPLES, NUM_TOKENS, 200, seed=3)
    batches = [plan.batch(step) for step in range(len(plan))]
    seen = Counter(int(i) for batch in batches for i in batch.token_ids[:, 0])
    assert seen == Counter(range(1, 101))
    assert sum(batch.num_tokens for batch in batches) == NUM_TOKENS
    assert all(batch.token_ids.numel() <= 200 for batch in batches)
    assert sum(batch.token_ids.numel() for batch in batches) < 1.2 * NUM_TOKENS


def test_a_longer_plan_begins_with_the_same_steps_and_reads_in_another_order_later():
    one, two = (BatchPlan(EXAMPLES, NUM_TOKENS * n, 200, seed=3) for n in (1, 2))
    assert all(one.batch(i).token_ids.equal(two.batch(i).token_ids) for i in range(len(one)))
    later = [two.batch(i).token_ids for i in range(len(one), len(two))]
    assert not all(
        a.equal(one.batch(i).token_ids) for i, a in enumerate(later[: len(one)]) if i < len(one)
    )
    other = BatchPlan(EXAMPLES, NUM_TOKENS, 200, seed=4)
    assert not all(one.batch(i).token_ids.equal(other.batch(i).token_ids) for i in range(3))


def test_answers_are_told_from_prompts_and_padding():
    batch = make_batch([example(5, 2, 3), example(6, 1, 1)])
    assert batch.token_ids.tolist() == [[5] * 5, [6, 6, 0, 0, 0]]
    assert batch.is_answer.tolist() == [
        [False, False, True, True, True],
        [False, True, False, False, False],
    ]
    assert batch.is_greedy.tolist() == [False, True]
    assert batch.num_tokens == 7


def test_measuring_reads_every_example_once():
    read = Counter(int(i) for batch in batches_of(EXAMPLES, 100) for i in batch.token_ids[:, 0])
    assert read == Counter(range(1, 101))


def test_nothing_to_train_on_is_an_error():
    with pytest.raises(ValueError, match="nothing to train on"):
        BatchPlan([], 10, 10, seed=0)
