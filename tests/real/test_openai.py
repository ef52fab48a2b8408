"""OpenAI's client and the demo target: the chat template, the stops and the drafts of real life."""

import json

import jsonschema
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


PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "minLength": 1, "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "married": {"type": "boolean"},
    },
    "required": ["name", "age", "married"],
    "additionalProperties": False,
}


@pytest.mark.timeout(120)
async def test_structured_outputs_whole_and_in_a_stream() -> None:
    async with (
        cluster(verifiers=[target()], drafters=[trained_draft()]) as running,
        front_door(running.address) as url,
        openai_client(url) as client,
    ):
        asked = {
            "model": "",
            "messages": [{"role": "user", "content": "Invent a person. Answer in JSON."}],
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "person", "schema": PERSON, "strict": True},
            },
            "temperature": 0.8,
            "seed": 4,
            "max_tokens": 200,
            "extra_body": {"outrider_receipt": True},
        }
        (choice,) = (await client.chat.completions.create(**asked)).choices
        assert choice.finish_reason == "stop"
        jsonschema.validate(json.loads(choice.message.content), PERSON)
        assert choice.outrider["num_draft_tokens"] > 0
        stream = await client.chat.completions.create(**asked, stream=True)
        pieces = [each.delta.content or "" async for event in stream for each in event.choices]
        assert "".join(pieces) == choice.message.content
        yes_or_no = await client.chat.completions.create(
            model="",
            messages=[{"role": "user", "content": "Is the sky blue?"}],
            temperature=0,
            extra_body={"structured_outputs": {"choice": ["yes", "no"]}},
        )
        assert yes_or_no.choices[0].message.content in ("yes", "no")
        with pytest.raises(openai.BadRequestError, match=r"structured_outputs\.regex: unclosed"):
            await client.chat.completions.create(
                model="",
                messages=[{"role": "user", "content": QUESTION}],
                extra_body={"structured_outputs": {"regex": "a("}},
            )
