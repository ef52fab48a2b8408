"""Every sampling parameter, alone and with others: speculation changes no token of the output."""

import random
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio
import torch
from transformers import (
    LlamaForCausalLM,
    LogitsProcessorList,
    NoBadWordsLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

from drafter_svc.settings import DrafterSettings
from outrider.sampling import SamplingParams
from tests.integration.stage import Stage, assert_parity, open_stage, together
from tests.toy import EOS, toy_tokenizer
from verifier_svc.settings import VerifierSettings

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

PROMPT = [20, 300, 5, 60, 20, 300, 5, 60, 20]
GREEDY = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
# Few ids, so that they come again and penalties are felt.
COUPLED = SamplingParams(
    max_tokens=16, ignore_eos=True, seed=5, allowed_token_ids=tuple(range(100, 124))
)
SOURCES = ("model", "ngram", "suffix", "recycling", "suffix+recycling", "lookahead", "oracle")
NUM_COMBINATIONS = 200
AT_ONCE = 20


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(toy: Path, other: Path) -> AsyncIterator[Stage]:
    target = VerifierSettings(model=str(toy), dtype="float32", num_threads=1)
    draft_model = DrafterSettings(model=str(other), dtype="float32", num_threads=1)
    async with open_stage([target], draft_model=draft_model) as opened:
        yield opened


def parameters(output: list[int]) -> dict[str, list[object]]:
    """Values of every parameter that change this output."""
    ids = sorted(set(output), key=lambda i: (-output.count(i), i))  # most frequent first
    return {
        "frequency_penalty": [2.0, -1.0],
        "presence_penalty": [2.0, -1.5],
        "repetition_penalty": [1.8, 0.7],
        "logit_bias": [
            tuple((i, -5.0) for i in sorted(ids[:3])),
            tuple((i, 6.0) for i in sorted(ids[-2:])),
        ],
        "allowed_token_ids": [tuple(range(100, 164)), (*ids[:2], 11, 12, 13)],
        "banned_token_ids": [tuple(ids[:4])],
        "bad_token_ids": [tuple((i,) for i in ids[:2]), (tuple(output[3:5]), tuple(output[5:8]))],
        "top_k": [3, 10],
        "top_p": [0.3, 0.8],
        "min_p": [0.5, 0.8],
        "min_tokens": [9],
        "stop_token_ids": [tuple(ids[:2])],
        "logprobs": [0, 5],
        "prompt_logprobs": [2],
    }


ALONE = sorted(parameters(list(range(8))))
TOUCHLESS = {"logprobs", "prompt_logprobs"}
"""Parameters that report and change nothing."""
SHAPING = {"top_k", "top_p", "min_p"}
"""Parameters that an argmax does not feel."""


def logprobs(messages) -> list[tuple[int, tuple[int, ...], float]]:
    return [(each.token_id, tuple(each.top_ids), round(each.logprob, 3)) for each in messages]


def assert_same(output, plain, sampling: SamplingParams, about: object) -> None:
    assert_parity(output, plain, about)
    complete = output.complete
    assert logprobs(complete.logprobs) == logprobs(plain.complete.logprobs), about
    assert logprobs(complete.prompt_logprobs) == logprobs(plain.complete.prompt_logprobs), about
    if sampling.logprobs is not None:
        assert [each.token_id for each in complete.logprobs] == output.token_ids
        streamed = [each for chunk in output.chunks for each in chunk.logprobs]
        assert logprobs(streamed) == logprobs(complete.logprobs)
        assert {len(each.top_ids) for each in complete.logprobs} == {sampling.logprobs}
    if sampling.prompt_logprobs is not None:
        assert [each.token_id for each in complete.prompt_logprobs] == PROMPT[1:]


@pytest.mark.parametrize("name", ALONE)
@pytest.mark.parametrize("law", [GREEDY, COUPLED], ids=["greedy", "coupled"])
async def test_alone(stage: Stage, law: SamplingParams, name: str):
    unhindered = await stage.plain(PROMPT, law)
    for value in parameters(unhindered.token_ids)[name]:
        sampling = replace(law, **{name: value})
        if name == "min_tokens":  # it delays the end that a stop id brings
            ids = unhindered.token_ids
            sampling = replace(sampling, stop_token_ids=tuple(ids[:1]))
        plain = await stage.plain(PROMPT, sampling)
        is_felt = plain.token_ids != unhindered.token_ids
        assert is_felt != (name in TOUCHLESS or (law is GREEDY and name in SHAPING)), value
        outputs = await together(
            *(stage.speculated(PROMPT, sampling, drafter=source) for source in SOURCES)
        )
        for source, output in zip(SOURCES, outputs, strict=True):
            assert_same(output, plain, sampling, (name, value, source))


CASE_14 = {
    "presence_penalty": 0.8,
    "frequency_penalty": 0.8,
    "repetition_penalty": 1.2,
}


@pytest.mark.parametrize("name", CASE_14)
async def test_case_14_a_good_drafter_does_not_weaken_a_penalty(stage: Stage, name: str):
    """The truth is drafted, so that whole runs are accepted, and each token of them counts."""
    prompt = [21 + list(CASE_14).index(name), *PROMPT]
    sampling = replace(GREEDY, max_tokens=200, **{name: CASE_14[name]})
    plain = await stage.plain(prompt, sampling)
    unhindered = await stage.plain(prompt, replace(GREEDY, max_tokens=100))  # the book wants one
    assert plain.token_ids[:100] != unhindered.token_ids
    outputs = await together(
        *(
            stage.speculated(prompt, sampling, drafter="oracle", num_draft_tokens=k)
            for k in range(1, 9)
        )
    )
    for k, output in enumerate(outputs, start=1):
        assert_parity(output, plain, k)
        assert output.complete.receipt.draft_acceptance_rate == 1.0, k
        assert output.complete.receipt.num_target_passes <= 200 // (k + 1) + 2, k


async def test_case_14_the_end_is_held_back_as_many_tokens_as_without_drafts(stage: Stage):
    """EOS is the top choice everywhere, and min_tokens counts tokens, not cycles."""
    eos = toy_tokenizer().token_to_id(EOS)
    sampling = SamplingParams(
        temperature=0.0, max_tokens=60, min_tokens=20, logit_bias=((eos, 99.0),)
    )
    prompt = [31, *PROMPT]
    plain = await stage.plain(prompt, sampling)
    assert plain.complete.matched_token_id == eos
    assert len(plain.token_ids) == 21
    for source in ("oracle", "model", "suffix"):
        outputs = await together(
            *(
                stage.speculated(prompt, sampling, drafter=source, num_draft_tokens=k)
                for k in range(1, 9)
            )
        )
        for k, output in enumerate(outputs, start=1):
            assert_parity(output, plain, (source, k))


async def test_two_hundred_random_combinations(stage: Stage):
    # seed 7
    rng = random.Random(7)
    pools = {
        law: parameters((await stage.plain(PROMPT, law)).token_ids) for law in (GREEDY, COUPLED)
    }
    drafted = accepted = 0
    for begin in range(0, NUM_COMBINATIONS, AT_ONCE):
        cases = []
        for number in range(begin, begin + AT_ONCE):
            law = GREEDY if number % 2 else COUPLED
            pool = pools[law]
            names = rng.sample(sorted(pool), rng.randint(2, 6))
            values = {name: rng.choice(pool[name]) for name in names}
            allowed = set(values.get("allowed_token_ids", range(100, 124)))
            hindered = set(values.get("banned_token_ids", ()))
            hindered |= {ids[-1] for ids in values.get("bad_token_ids", ())}
            hindered |= set(values.get("stop_token_ids", ()))
            if not allowed - hindered:
                del values["allowed_token_ids"]
            if law is COUPLED:
                values |= {"seed": number, "temperature": rng.choice([0.3, 1.0, 1.5])}
            cases.append((rng.choice(SOURCES), replace(law, **values)))
        plain = await together(*(stage.plain(PROMPT, sampling) for _, sampling in cases))
        outputs = await together(
            *(stage.speculated(PROMPT, sampling, drafter=source) for source, sampling in cases)
        )
        for (source, sampling), expected, output in zip(cases, plain, outputs, strict=True):
            assert_same(output, expected, sampling, (source, sampling))
            drafted += output.complete.receipt.num_draft_tokens
            accepted += output.complete.receipt.num_accepted_draft_tokens
    assert drafted > 2000
    assert accepted > 200


async def test_greedy_is_what_transformers_gives_with_the_same_processors(stage: Stage, toy: Path):
    ids = (await stage.plain(PROMPT, GREEDY)).token_ids
    bias, bad = ((7, 1.5), (ids[0], -1.0)), (tuple(ids[1:3]), (ids[3],))
    sampling = replace(
        GREEDY, repetition_penalty=1.3, logit_bias=bias, bad_token_ids=bad, banned_token_ids=(8,)
    )
    model = LlamaForCausalLM.from_pretrained(toy, dtype=torch.float32)
    processors = LogitsProcessorList(
        [
            SequenceBiasLogitsProcessor([[[i], value] for i, value in bias]),
            RepetitionPenaltyLogitsProcessor(1.3),
            NoBadWordsLogitsProcessor([list(each) for each in bad]),
            SuppressTokensLogitsProcessor([8]),
        ]
    )
    text = list(PROMPT)
    with torch.inference_mode():
        for _ in range(16):
            given = torch.tensor([text])
            text.append(int(processors(given, model(given).logits[:, -1]).argmax()))
    assert (await stage.plain(PROMPT, sampling)).token_ids == text[len(PROMPT) :]


async def test_prompt_logprobs_are_those_of_transformers(stage: Stage, toy: Path):
    rng = random.Random(3)
    prompt = [rng.randrange(500) for _ in range(300)]  # more than two chunks
    sampling = replace(GREEDY, prompt_logprobs=3, max_tokens=2)
    model = LlamaForCausalLM.from_pretrained(toy, dtype=torch.float32)
    with torch.inference_mode():
        expected = model(torch.tensor([prompt])).logits[0].log_softmax(-1)
    for _ in range(2):  # the second time the prefix cache could serve the prompt
        output = await stage.plain(prompt, sampling)
        assert output.complete.cached_tokens == 0
        found = output.complete.prompt_logprobs
        assert [each.token_id for each in found] == prompt[1:]
        for row, each in enumerate(found):
            assert abs(each.logprob - float(expected[row, prompt[row + 1]])) < 1e-3
            assert each.top_ids[0] == int(expected[row].argmax())
    assert (
        await stage.plain(prompt, replace(sampling, prompt_logprobs=None))
    ).complete.cached_tokens
