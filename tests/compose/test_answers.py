"""Generate over gRPC from outside: every mode, and the tokens that one process answers with."""

import asyncio

import pytest
from openai import AsyncOpenAI

from outrider.client import Client, generate_request
from outrider.sampling import AcceptanceRule, SamplingParams
from tests.compose.deployment import Deployment
from tests.compose.requests import PROMPTS, QUESTIONS, Answers, ask

pytestmark = [pytest.mark.compose, pytest.mark.asyncio(loop_scope="session")]

MAX_TOKENS = 24


async def test_openai_clients_get_the_same_answer(deployment: Deployment) -> None:
    sampling = SamplingParams(temperature=0.8, seed=7, max_tokens=MAX_TOKENS)
    async with Client(deployment.address) as client:
        output = await client.generate(generate_request([("user", "Count to ten.")], sampling))
    async with AsyncOpenAI(
        base_url=f"http://127.0.0.1:{deployment.openai_port}/v1", api_key="none"
    ) as client:
        answer = await client.chat.completions.create(
            model="smollm2-135m-instruct",
            messages=[{"role": "user", "content": "Count to ten."}],
            temperature=0.8,
            seed=7,
            max_tokens=MAX_TOKENS,
        )
    assert answer.choices[0].message.content == output.text


async def test_a_deployment_of_one_each_is_ready(deployment: Deployment) -> None:
    roles = {worker.role for worker in await deployment.workers()}
    assert roles == {"verifier", "drafter"}


@pytest.mark.parametrize("source", ["model", "ngram"])
@pytest.mark.parametrize("rule", ["greedy", *(rule.value for rule in AcceptanceRule)])
async def test_every_mode_answers(deployment: Deployment, rule: str, source: str) -> None:
    greedy = rule == "greedy"
    sampling = SamplingParams(
        temperature=0.0 if greedy else 0.8, seed=7, max_tokens=MAX_TOKENS, ignore_eos=True
    )
    request = generate_request(
        [("user", "Repeat three times: the cat sat on the mat, the cat sat on the mat.")],
        sampling,
        sources=[source],
        acceptance_rule=None if greedy else AcceptanceRule(rule),
    )
    async with Client(deployment.address) as client:
        output = await client.generate(request)
    receipt = output.complete.receipt
    assert receipt.rule == rule
    assert len(output.token_ids) == MAX_TOKENS
    assert set(receipt.draft_tokens_by_source) <= {source, "lookup"}  # the latter where it is late
    if source == "model":
        assert receipt.num_draft_tokens > 0


@pytest.mark.parametrize("source", ["model", "ngram", "target_only"])
async def test_the_output_is_that_of_one_process(
    deployment: Deployment, answers: Answers, source: str
) -> None:
    plain = source == "target_only"
    how = {"target_only": True} if plain else {"sources": [source]}
    async with Client(deployment.address) as client:
        outputs = await asyncio.gather(*(ask(client, each, answers, **how) for each in QUESTIONS))
    drafted = sum(output.complete.receipt.num_draft_tokens for output in outputs)
    assert (drafted == 0) == plain
    assert len(outputs) == 2 * len(PROMPTS)
