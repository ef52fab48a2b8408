"""OpenAI's own client against the running services: the same answers as over gRPC."""

import asyncio
import math
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import openai
import pytest
import pytest_asyncio

from drafter_svc.__main__ import open_drafter
from drafter_svc.settings import DrafterSettings
from outrider.client import generate_request
from outrider.sampling import SamplingParams
from outrider.v1 import generation_pb2 as pb
from tests.cluster import Cluster, cluster
from tests.integration.conftest import SCALE
from tests.openai_door import front_door, openai_client
from tests.toy import TEMPLATE, save_toy
from verifier_svc.__main__ import open_verifier
from verifier_svc.settings import VerifierSettings

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

MODEL = "toy-with-tools"
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
MESSAGES = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hello"}]
PAIRS = [("system", "be brief"), ("user", "hello")]
GREEDY = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
FREED_S = 10.0


@dataclass(frozen=True)
class Served:
    """The services behind the front door, and OpenAI's client before it."""

    cluster: Cluster
    client: openai.AsyncOpenAI
    url: str


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def served(models: Path) -> AsyncIterator[Served]:
    reads_tools = "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}"
    toy = save_toy(models / MODEL, seed=1, scale=SCALE, template=reads_tools + TEMPLATE)
    verifier = VerifierSettings(model=str(toy), dtype="float32", num_threads=1)
    drafter = DrafterSettings(model=str(toy), dtype="float32", num_threads=1)
    async with (
        cluster(
            verifiers=[lambda: open_verifier(verifier)], drafters=[lambda: open_drafter(drafter)]
        ) as running,
        front_door(running.address) as url,
        openai_client(url) as client,
    ):
        yield Served(running, client, url)


async def test_a_conversation_whole_and_in_a_stream(served: Served):
    output = await served.cluster.client.generate(generate_request(PAIRS, GREEDY))
    asked = {"model": MODEL, "messages": MESSAGES, "temperature": 0, "max_completion_tokens": 24}
    extra = {"ignore_eos": True, "outrider_receipt": True}
    whole = await served.client.chat.completions.create(**asked, extra_body=extra)
    (choice,) = whole.choices
    assert (choice.message.content, choice.message.role) == (output.text, "assistant")
    assert choice.finish_reason == "length"
    assert whole.usage is not None
    assert whole.usage.prompt_tokens == output.complete.prompt_tokens
    assert whole.usage.completion_tokens == 24
    assert whole.usage.prompt_tokens_details is not None
    assert whole.usage.prompt_tokens_details.cached_tokens > 0  # by the request above
    assert choice.outrider["num_accepted_draft_tokens"] > 0
    stream = await served.client.chat.completions.create(
        **asked, extra_body=extra, stream=True, stream_options={"include_usage": True}
    )
    events = [event async for event in stream]
    texts = [each.delta.content or "" for event in events for each in event.choices]
    assert "".join(texts) == output.text
    assert events[-1].usage == whole.usage
    assert events[-2].choices[0].finish_reason == "length"


async def test_an_answer_can_be_sent_back(served: Served):
    asked = {"model": MODEL, "temperature": 0, "max_tokens": 4}
    first = await served.client.chat.completions.create(messages=MESSAGES, **asked)
    messages = [*MESSAGES, first.choices[0].message, {"role": "user", "content": "and then?"}]
    second = await served.client.chat.completions.create(messages=messages, **asked)
    assert second.usage.prompt_tokens > first.usage.prompt_tokens


async def test_a_seed_gives_the_same_completion_as_over_grpc(served: Served):
    ids = [[30, 31, 32], [40, 41]]
    sampling = SamplingParams(temperature=0.8, top_p=0.9, seed=7, max_tokens=12, ignore_eos=True)
    asked = {"model": MODEL, "temperature": 0.8, "top_p": 0.9, "seed": 7, "max_tokens": 12}
    texts = [
        (await served.cluster.client.generate(generate_request(each, sampling))).text
        for each in ids
    ]
    whole = await served.client.completions.create(
        prompt=ids, **asked, extra_body={"ignore_eos": True}
    )
    assert [choice.text for choice in whole.choices] == texts
    # Without drafts as well.
    plain = {"ignore_eos": True, "speculation": {"target_only": True}}
    stream = await served.client.completions.create(
        prompt=ids, **asked, stream=True, extra_body=plain
    )
    streamed = {0: "", 1: ""}
    async for event in stream:
        streamed[event.choices[0].index] += event.choices[0].text
    assert list(streamed.values()) == texts


async def test_a_stop_ends_the_text_before_it(served: Served):
    output = await served.cluster.client.generate(generate_request("abc", GREEDY))
    stop = output.text[5:7]
    answer = await served.client.completions.create(
        model=MODEL, prompt="abc", temperature=0, max_tokens=24, stop=[stop]
    )
    assert answer.choices[0].text == output.text[: output.text.index(stop)]
    assert (answer.choices[0].finish_reason, answer.choices[0].stop_reason) == ("stop", stop)


async def test_log_probabilities(served: Served):
    sampling = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, logprobs=3)
    output = await served.cluster.client.generate(generate_request(PAIRS, sampling))
    asked = {"model": MODEL, "temperature": 0, "max_tokens": 8, "logprobs": True}
    chat = await served.client.chat.completions.create(
        messages=MESSAGES, top_logprobs=3, extra_body={"ignore_eos": True}, **asked
    )
    content = chat.choices[0].logprobs.content
    assert [each.logprob for each in content] == [each.logprob for each in output.logprobs]
    assert {len(each.top_logprobs) for each in content} == {3}
    assert all(each.top_logprobs[0].token == each.token for each in content)  # greedy
    joined = bytes(byte for each in content for byte in each.bytes)
    # A character that is still incomplete at the end is no part of the text.
    assert joined.decode(errors="replace").rstrip("\ufffd") == output.text
    # A prompt scored without an output, as evaluations do it.
    scored = await served.client.completions.create(
        model=MODEL, prompt="hello", echo=True, max_tokens=0, logprobs=1
    )
    told = scored.choices[0].logprobs
    assert ("".join(told.tokens), scored.choices[0].text) == ("hello", "hello")
    assert told.token_logprobs[0] is None
    assert all(-math.inf < value < 0 for value in told.token_logprobs[1:])
    assert scored.usage.completion_tokens == 0


async def test_choices_have_seeds_of_their_own_and_share_the_prompt(served: Served):
    sampling = SamplingParams(temperature=0.9, seed=5, n=3, max_tokens=10, ignore_eos=True)
    output = await served.cluster.client.generate(generate_request(PAIRS, sampling))
    asked = {"model": MODEL, "messages": MESSAGES, "temperature": 0.9, "seed": 5, "n": 3}
    whole = await served.client.chat.completions.create(
        **asked, max_tokens=10, extra_body={"ignore_eos": True}
    )
    texts = [choice.message.content for choice in whole.choices]
    assert texts == [choice.text for choice in output.choices]
    assert len(set(texts)) == 3
    assert whole.usage.completion_tokens == 30
    assert whole.usage.prompt_tokens == output.complete.prompt_tokens
    stream = await served.client.chat.completions.create(
        **asked, max_tokens=10, stream=True, extra_body={"ignore_eos": True}
    )
    streamed = ["", "", ""]
    async for event in stream:
        for choice in event.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert streamed == texts


async def test_tools_reach_the_template(served: Served):
    asked = {"model": MODEL, "messages": MESSAGES, "temperature": 0, "max_tokens": 2}

    async def num_prompt_tokens(**how: object) -> int:
        answer = await served.client.chat.completions.create(**asked, **how)
        return answer.usage.prompt_tokens

    plain = await num_prompt_tokens()
    assert await num_prompt_tokens(tools=[TOOL]) > plain
    assert await num_prompt_tokens(tools=[TOOL], tool_choice="none") == plain


async def test_a_begun_answer_is_continued(served: Served):
    begun = [*MESSAGES, {"role": "assistant", "content": "so"}]
    asked = {"model": MODEL, "temperature": 0, "max_tokens": 8}
    answer = await served.client.chat.completions.create(
        messages=begun,
        **asked,
        extra_body={"continue_final_message": True, "ignore_eos": True},
    )
    request = generate_request(
        [*PAIRS, ("assistant", "so")],
        SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True),
        continue_final_message=True,
    )
    output = await served.cluster.client.generate(request)
    assert answer.choices[0].message.content == output.text


async def test_a_kept_stop_and_a_cut_prompt(served: Served):
    output = await served.cluster.client.generate(generate_request("abc", GREEDY))
    stop = output.text[5:7]
    asked = {"model": MODEL, "temperature": 0, "max_tokens": 24, "stop": stop}
    kept = {"include_stop_str_in_output": True, "ignore_eos": True}
    answer = await served.client.completions.create(prompt="abc", **asked, extra_body=kept)
    assert answer.choices[0].text == output.text[: output.text.index(stop) + len(stop)]
    cut = {"truncate_prompt_tokens": 2}
    long = await served.client.completions.create(
        model=MODEL, prompt=[7, 8, 30, 31], extra_body=cut, temperature=0
    )
    short = await served.client.completions.create(model=MODEL, prompt=[30, 31], temperature=0)
    assert (long.choices[0].text, long.usage) == (short.choices[0].text, short.usage)


async def test_models(served: Served):
    listed = [model async for model in served.client.models.list()]
    assert [model.id for model in listed] == [MODEL]
    assert (await served.client.models.retrieve(MODEL)).max_model_len == 512
    with pytest.raises(openai.NotFoundError):
        await served.client.models.retrieve("other")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"top_p": 2}, "top_p"),
        ({"extra_body": {"stop_token_ids": [512]}}, "stop_token_ids[0]"),
        ({"extra_body": {"speculation": {"sources": ["nobody"]}}}, "speculation.sources"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"messages": [{"role": "user", "content": "x" * 600}]}, "messages"),
    ],
)
async def test_errors_name_the_parameter(served: Served, fields: dict, param: str):
    with pytest.raises(openai.BadRequestError) as error_info:
        await served.client.chat.completions.create(
            **{"model": MODEL, "messages": MESSAGES, **fields}
        )
    assert error_info.value.param == param
    assert error_info.value.message.count(param) >= 1


async def test_an_unknown_model(served: Served):
    with pytest.raises(openai.NotFoundError, match="other is not served"):
        await served.client.chat.completions.create(model="other", messages=MESSAGES)


async def test_leaving_a_stream_frees_its_request(served: Served):
    stream = await served.client.completions.create(
        model=MODEL,
        prompt="abc",
        max_tokens=400,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    await anext(aiter(stream))
    await stream.close()
    question = pb.GenerationServiceGetLoadsRequest()
    async with asyncio.timeout(FREED_S):
        while (await served.cluster.client.stub.GetLoads(question)).load.num_running_reqs:  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def test_many_clients_at_once_and_one_that_blocks(served: Served):
    def ask() -> str:
        with openai.OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as blocking:
            answer = blocking.completions.create(model=MODEL, prompt="abc", temperature=0)
        return answer.choices[0].text

    asked = {"model": MODEL, "prompt": "abc", "temperature": 0}
    calls = [served.client.completions.create(**asked) for _ in range(20)]
    blocked, *answers = await asyncio.gather(asyncio.to_thread(ask), *calls)
    assert {answer.choices[0].text for answer in answers} == {blocked}
