"""What the tests ask, and what one process without drafts answers."""

import asyncio
from dataclasses import dataclass

from outrider.client import Client, Output, generate_request
from outrider.questions import load_questions
from outrider.sampling import SamplingParams
from outrider.v1 import generation_pb2 as pb
from tests.cluster import cluster
from tests.real.models import target

NUM_PROMPTS = 8
PROMPTS = tuple(question.text[:120] for question in load_questions(NUM_PROMPTS))
LAWS = {
    "greedy": {"temperature": 0.0},
    "coupled": {"temperature": 0.8, "top_p": 0.95, "seed": 20_240_607},
}


@dataclass(frozen=True, slots=True)
class Question:
    """A prompt under a law whose output does not depend on drafts."""

    law: str
    prompt: str

    def request(self, *, max_tokens: int, **how: object) -> pb.GenerateRequest:
        """Return the request; ``how`` says how it may be speculated on."""
        sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=True, **LAWS[self.law])
        return generate_request([("user", self.prompt)], sampling, **how)


QUESTIONS = tuple(Question(law, prompt) for law in LAWS for prompt in PROMPTS)
"""Sixteen; each test takes as many as it needs."""

Answers = dict[Question, list[int]]


async def reference(max_tokens: int) -> Answers:
    """Return the ids that this one process answers with, target-only."""
    async with cluster(verifiers=[target()], min_step_timeout_s=600) as services:
        requests = [each.request(max_tokens=max_tokens, target_only=True) for each in QUESTIONS]
        outputs = await asyncio.gather(*(services.client.generate(each) for each in requests))
    return {each: out.token_ids for each, out in zip(QUESTIONS, outputs, strict=True)}


async def ask(client: Client, question: Question, answers: Answers, **how: object) -> Output:
    """Ask and compare with the reference, of which any beginning may be asked for."""
    expected = answers[question]
    max_tokens = how.pop("max_tokens", len(expected))
    assert isinstance(max_tokens, int)
    output = await client.generate(question.request(max_tokens=max_tokens, **how))
    assert output.token_ids == expected[:max_tokens], question
    streamed = [token for chunk in output.chunks for token in chunk.token_ids]
    assert streamed == output.token_ids
    return output
