"""What the parameters make of every row, position by position, beside transformers' processors."""

import numpy as np
import pytest
import torch
from transformers import (
    LogitsProcessorList,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from outrider.distribution import log_probs
from outrider.sampling import SamplingParams
from outrider.sampling_state import SamplingState, SequenceState

VOCAB_SIZE = 50
PROMPT = [3, 7, 7, 12, 30]
OUTPUT = [4, 7, 9, 4]
CHAIN = [5, 4, 9, 9, 11]
TREE, PARENTS = [5, 4, 9, 9, 4, 30], [-1, -1, 0, 1, 2, 4]


def state(sampling: SamplingParams, output: list[int]) -> SamplingState:
    states = SequenceState(sampling, len(PROMPT), VOCAB_SIZE)
    states.tell(0, [*PROMPT, *output])
    return states.state()


def logits(num_rows: int) -> torch.Tensor:
    # seed 5
    return 3 * torch.randn(num_rows, VOCAB_SIZE, generator=torch.Generator().manual_seed(5))


def paths(token_ids: list[int], parents: list[int]) -> list[list[int]]:
    found: list[list[int]] = [[]]
    for node, token_id in enumerate(token_ids):
        found.append([*found[(parents[node] if parents else node - 1) + 1], token_id])
    return found


FULL = {
    "temperature": 0.7,
    "top_k": 20,
    "top_p": 0.9,
    "repetition_penalty": 1.3,
    "logit_bias": ((4, 2.5), (9, -1.5), (40, 3.0)),
    "banned_token_ids": (2, 41),
    "bad_token_ids": ((9, 9), (11,), (4, 9, 9), (30, 4)),
    "min_tokens": 7,
    "stop_token_ids": (0, 12),
}
ALONE = [{name: value} for name, value in FULL.items() if name not in ("min_tokens",)]


def processors(values: dict) -> LogitsProcessorList:
    found = LogitsProcessorList()
    if "logit_bias" in values:
        bias = [[[token_id], value] for token_id, value in values["logit_bias"]]
        found.append(SequenceBiasLogitsProcessor(bias))
    if "repetition_penalty" in values:
        found.append(RepetitionPenaltyLogitsProcessor(values["repetition_penalty"]))
    if "bad_token_ids" in values:
        bad = [list(ids) for ids in values["bad_token_ids"]]
        found.append(NoBadWordsLogitsProcessor(bad))
    if "banned_token_ids" in values:
        found.append(SuppressTokensLogitsProcessor(list(values["banned_token_ids"])))
    if "min_tokens" in values:
        stops = list(values["stop_token_ids"])
        found.append(MinNewTokensLengthLogitsProcessor(len(PROMPT), values["min_tokens"], stops))
    if "temperature" in values:
        found.append(TemperatureLogitsWarper(values["temperature"]))
    if "top_k" in values:
        found.append(TopKLogitsWarper(values["top_k"]))
    if "top_p" in values:
        found.append(TopPLogitsWarper(values["top_p"]))
    return found


@pytest.mark.parametrize("output", [[], OUTPUT], ids=["first", "later"])
@pytest.mark.parametrize(("token_ids", "parents"), [([], []), (CHAIN, []), (TREE, PARENTS)])
@pytest.mark.parametrize("values", [*ALONE, FULL], ids=lambda values: ",".join(values))
def test_every_row_is_what_transformers_makes_of_its_own_path(values, token_ids, parents, output):
    rows = state(SamplingParams(**values), output).rows(token_ids, parents)
    given = logits(len(rows))
    found = log_probs(given, rows, vocab_size=VOCAB_SIZE)
    for row, path in enumerate(paths(token_ids, parents)):
        ids = torch.tensor([[*PROMPT, *output, *path]])
        expected = processors(values)(ids, given[row : row + 1].clone()).log_softmax(-1)[0]
        assert torch.equal(found[row] == -torch.inf, expected == -torch.inf), (row, path)
        torch.testing.assert_close(found[row], expected, atol=2e-6, rtol=0)


@pytest.mark.parametrize(("frequency", "presence"), [(0.5, 0.0), (0.0, -1.5), (1.25, 0.75)])
def test_counts_of_the_output_are_penalised_and_those_of_the_prompt_are_not(frequency, presence):
    # transformers has neither; the formula is that of OpenAI's documentation.
    sampling = SamplingParams(frequency_penalty=frequency, presence_penalty=presence)
    rows = state(sampling, OUTPUT).rows(TREE, PARENTS)
    given = logits(len(rows))
    found = log_probs(given, rows, vocab_size=VOCAB_SIZE)
    for row, path in enumerate(paths(TREE, PARENTS)):
        counts = torch.bincount(torch.tensor([*OUTPUT, *path]), minlength=VOCAB_SIZE)
        expected = given[row] - frequency * counts - presence * (counts > 0)
        torch.testing.assert_close(found[row], expected.log_softmax(-1), atol=2e-6, rtol=0)


def test_only_allowed_ids_are_left():
    rows = state(SamplingParams(allowed_token_ids=(4, 8, 20), banned_token_ids=(8,)), []).rows()
    found = log_probs(logits(1), rows, vocab_size=VOCAB_SIZE)[0]
    assert (found > -torch.inf).nonzero()[:, 0].tolist() == [4, 20]


def same(a: SamplingState, b: SamplingState) -> bool:
    one, two = (log_probs(logits(6), s.rows(CHAIN), vocab_size=VOCAB_SIZE) for s in (a, b))
    return torch.equal(one, two)


EVERYTHING = SamplingParams(**FULL, frequency_penalty=0.5, presence_penalty=0.25)


def test_a_state_depends_on_the_ids_and_not_on_how_they_came():
    states = SequenceState(EVERYTHING, len(PROMPT), VOCAB_SIZE)
    states.tell(0, PROMPT)
    first = states.state()
    assert same(first, state(EVERYTHING, []))
    states.tell(len(PROMPT), [*OUTPUT, 33, 34])  # to be cut again
    states.state()
    states.tell(len(PROMPT) + 2, OUTPUT[2:3])
    assert same(states.state(), state(EVERYTHING, OUTPUT[:3]))
    states.tell(len(PROMPT) + 3, OUTPUT[3:])
    states.tell(len(PROMPT) + 4, [])  # two tellings, one state
    assert same(states.state(), state(EVERYTHING, OUTPUT))
    assert same(first, state(EVERYTHING, []))  # older states stay as they were
    states.tell(2, [8, 8, 8, 8])  # another prompt
    other = SequenceState(EVERYTHING, len(PROMPT), VOCAB_SIZE)
    other.tell(0, [*PROMPT[:2], 8, 8, 8, 8])
    assert same(states.state(), other.state())


def test_a_gap_is_refused():
    states = SequenceState(EVERYTHING, len(PROMPT), VOCAB_SIZE)
    states.tell(0, PROMPT)
    with pytest.raises(ValueError, match="from 6 on, of a sequence of 5"):
        states.tell(6, [1])


@pytest.mark.parametrize(
    "sampling", [EVERYTHING, SamplingParams(min_tokens=7, stop_token_ids=(4,))]
)
def test_one_row_alone_is_that_of_the_chain(sampling):
    here = state(sampling, OUTPUT)
    rows = here.rows(CHAIN)
    alone = [here.row(CHAIN[:num]) for num in range(len(CHAIN) + 1)]
    assert torch.equal(
        log_probs(logits(6), rows, vocab_size=VOCAB_SIZE),
        log_probs(logits(6), alone, vocab_size=VOCAB_SIZE),
    )


def test_unknown_tokens_count_for_min_tokens_alone():
    here = state(SamplingParams(min_tokens=6, stop_token_ids=(4,)), OUTPUT)
    masked = [bool(here.row([1], num_unknown=n).banned_ids) for n in range(3)]
    assert masked == [True, False, False]


class Even:
    """Allows even ids while the number of output ids is even, and odd ones else."""

    def __init__(self, num: int = 0) -> None:
        self.num = num

    def behind(self, output_ids):
        return Even(len(output_ids))

    def allowed(self, token_ids, parents):
        depths = [len(path) for path in paths(list(token_ids), list(parents))]
        bits = [np.arange(VOCAB_SIZE) % 2 == (self.num + depth) % 2 for depth in depths]
        return [np.packbits(each, bitorder="little") for each in bits]

    def after(self, path):
        return self.allowed(path, ())[-1]

    def legal(self, path, token_ids, parents):
        raise NotImplementedError


def test_a_constraint_masks_each_row_by_its_own_path():
    sampling = SamplingParams(banned_token_ids=(2,), frequency_penalty=0.5)
    states = SequenceState(sampling, len(PROMPT), VOCAB_SIZE, Even())
    object.__setattr__(sampling, "constraint", "even")
    states.tell(0, [*PROMPT, 6])
    rows = states.state().rows(TREE, PARENTS)
    found = log_probs(logits(len(rows)), rows, vocab_size=VOCAB_SIZE)
    for row, path in enumerate(paths(TREE, PARENTS)):
        expected = [i for i in range(VOCAB_SIZE) if i % 2 == (1 + len(path)) % 2 and i != 2]
        assert (found[row] > -torch.inf).nonzero()[:, 0].tolist() == expected
