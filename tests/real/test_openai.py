"""OpenAI's client and the demo target: the chat template, the stops and the drafts of real life."""

import openai
import pytest

from outrider.client import generate_request
from outrider.sampling import SamplingParams
from tests.cluster import cluster
from tests.openai_door import front_door, openai_client
from tests.real.models import target, trained_draft

pytestmark = pytest.mark.integration

QUESTION = "What is the capital of France? Answer in one sentence."


@pytest.mark.timeout(120)
async def test_a_question_is_answered_as_over_grpc() -> None:
    sampling = SamplingParams(temperature=0.0, max_tokens=32)
    async with (
        cluster(verifiers=[target()], drafters=[trained_draft()]) as running,
        front_door(running.address) as url,
        openai_client(url) as client,
    ):
        output = await running.client.generate(generate_request([("user", QUESTION)], sampling))
        stream = await client.chat.completions.create(
            model=(await client.models.list()).data[0].id,
            messages=[{"role": "user", "content": QUESTION}],
            temperature=0,
            max_tokens=32,
            stream=True,
            logprobs=True,
            extra_body={"outrider_receipt": True},
        )
        choices = [choice async for event in stream for choice in event.choices]
        text = "".join(choice.delta.content or "" for choice in choices)
        assert text == output.text
        assert "Paris" in text
        assert choices[-1].finish_reason == "stop"
        assert choices[-1].outrider["num_draft_tokens"] > 0
        told = [each for choice in choices if choice.logprobs for each in choice.logprobs.content]
        assert "".join(each.token for each in told).removesuffix("<|im_end|>") == text
        with pytest.raises(openai.BadRequestError, match="^.*tool_choice"):
            await client.chat.completions.create(
                model="",
                messages=[{"role": "user", "content": QUESTION}],
                tool_choice="required",
            )
