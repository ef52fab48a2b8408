"""The whole stack in float32 says what transformers' own greedy ``generate`` says.

Where the two differ at a tie, the tie is shown: the gap of transformers' best two logits.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence

import pytest
import pytest_asyncio
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from outrider.checkpoints import prepare
from outrider.client import generate_request
from outrider.questions import load_questions
from outrider.sampling import SamplingParams
from tests.cluster import Cluster, cluster
from tests.real.models import target, trained_draft

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.integration]

MAX_TIE = 1e-4
AT_ONCE = 4


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def services() -> AsyncIterator[Cluster]:
    """Target and untrained draft in float32."""
    async with cluster(
        verifiers=[target("float32")], drafters=[trained_draft("float32")]
    ) as running:
        yield running


@pytest.fixture(scope="module")
def reference() -> PreTrainedModel:
    """The same weights in plain transformers."""
    return AutoModelForCausalLM.from_pretrained(prepare().target, dtype=torch.float32).eval()


def prompt_ids(num_questions: int, max_characters: int | None) -> list[list[int]]:
    """Chat prompts of the questions."""
    tokenizer = AutoTokenizer.from_pretrained(prepare().target)
    questions = load_questions(num_questions, max_characters=max_characters)
    chats = [[{"role": "user", "content": question.text}] for question in questions]
    return [
        tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_dict=False)
        for chat in chats
    ]


def generate(reference: PreTrainedModel, ids: Sequence[int], max_tokens: int) -> list[int]:
    """Transformers' own greedy output."""
    prompt = torch.tensor([ids])
    with torch.inference_mode():
        output = reference.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            max_new_tokens=max_tokens,
            do_sample=False,
        )
    result: list[int] = output[0, len(ids) :].tolist()
    return result


def gap(reference: PreTrainedModel, ids: Sequence[int]) -> float:
    """The best logit minus the second best after the ids."""
    with torch.inference_mode():
        logits = reference(torch.tensor([ids]), logits_to_keep=1).logits[0, -1]
    best, second = logits.topk(2).values.tolist()
    return float(best - second)


async def compare(
    services: Cluster,
    reference: PreTrainedModel,
    *,
    num_questions: int,
    max_tokens: int,
    max_characters: int | None = None,
) -> None:
    """Answer all questions both ways; a difference must begin at a tie."""
    sampling = SamplingParams(temperature=0.0, max_tokens=max_tokens)
    prompts = prompt_ids(num_questions, max_characters)
    gate = asyncio.Semaphore(AT_ONCE)

    async def answer(index: int) -> list[int]:
        # Every third question runs target-only, so that both kinds of cycles are compared.
        how = [{"target_only": True}, {"sources": ["ngram"]}, {"num_draft_tokens": 3}][index % 3]
        async with gate:
            request = generate_request(prompts[index], sampling, **how)
            return (await services.client.generate(request)).token_ids

    ours = await asyncio.gather(*map(answer, range(num_questions)))
    ties = []
    for prompt, output in zip(prompts, ours, strict=True):
        expected = await asyncio.to_thread(generate, reference, prompt, max_tokens)
        if output == expected:
            continue
        pairs = zip(output, expected, strict=False)
        same = next(i for i, (one, other) in enumerate(pairs) if one != other)
        ties.append(gap(reference, [*prompt, *expected[:same]]))
    assert all(tie < MAX_TIE for tie in ties), f"differences away from ties: {ties}"


@pytest.mark.timeout(300)
async def test_greedy_output_is_that_of_transformers(
    services: Cluster, reference: PreTrainedModel
) -> None:
    # Short questions: the reference reads prompts on one thread; `make parity` takes all lengths.
    await compare(services, reference, num_questions=12, max_tokens=48, max_characters=600)


@pytest.mark.parity
@pytest.mark.timeout(1800)
async def test_long_greedy_output_is_that_of_transformers(
    services: Cluster, reference: PreTrainedModel
) -> None:
    await compare(services, reference, num_questions=50, max_tokens=64)
