"""Conversations over the wire: the template sees what the client sent, and is applied once."""

import json
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
import pytest_asyncio

from outrider.client import generate_request
from outrider.sampling import SamplingParams
from outrider.v1 import generation_pb2 as pb
from tests.integration.stage import ANSWER_S, Stage, open_stage
from tests.toy import save_toy
from verifier_svc.settings import VerifierSettings

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

PARAMS = SamplingParams(temperature=0.0, max_tokens=4, ignore_eos=True)
TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% for m in messages %}"
    "{% if m.role == 'critic' %}{{ raise_exception('no critics here') }}{% endif %}"
    "<{{ m.role }}{% if m.name %}:{{ m.name }}{% endif %}>{{ m.content | trim }}"
    "{% for call in m.tool_calls %}[{{ call.function.name }}{{ call.function.arguments | tojson }}]"
    "{% endfor %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% if quiet %}...{% endif %}{% endif %}"
)
CALL = {"function": {"name": "f", "arguments": {"x": "ü"}}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(models: Path) -> AsyncIterator[Stage]:
    folder = save_toy(models / "tools", seed=1, template=TEMPLATE)
    target = VerifierSettings(model=str(folder), dtype="float32", num_threads=1)
    async with open_stage([target]) as opened:
        yield opened


def chat(*messages: pb.ChatMessage, **fields: object) -> pb.ChatInput:
    return pb.ChatInput(messages=messages, **fields)


def said(role: str, content: str, **extra: object) -> pb.ChatMessage:
    return pb.ChatMessage(role=role, content=content, extra_json=json.dumps(extra) if extra else "")


CHATS = {
    "everything": (
        chat(
            said("user", " a ", name="ann"),
            said("assistant", "", tool_calls=[CALL, CALL]),
            said("tool", "{}"),
            tools_json='[{"b": "é", "a": 1}]',
            template_kwargs_json='{"quiet": true}',
        ),
        '[{"b": "é", "a": 1}]<user:ann>a\n<assistant>[f{"x": "ü"}][f{"x": "ü"}]\n<tool>{}\n'
        "<assistant>...",
    ),
    "continued": (
        chat(said("user", "a"), said("assistant", " so "), continue_final_message=True),
        "<user>a\n<assistant>so",
    ),
    "plain": (chat(said("user", "a")), "<user>a\n<assistant>"),
}


@pytest.mark.parametrize("name", CHATS)
async def test_generate_and_tokenize_read_the_same_prompt(stage: Stage, name: str):
    conversation, text = CHATS[name]
    answer = await stage.client.stub.Tokenize(pb.TokenizeRequest(chat=conversation))
    ids = list(answer.token_ids)
    assert ids == await stage.client.tokenize(text), "the toy tokenizer adds no token itself"
    request = generate_request("", PARAMS, target_only=True)
    request.chat.CopyFrom(conversation)
    output = await stage.client.generate(request, timeout_s=ANSWER_S)
    assert output.complete.prompt_tokens == len(ids)
    assert output.token_ids == (await stage.plain(ids, PARAMS)).token_ids


@pytest.mark.parametrize(
    ("conversation", "fault"),
    [
        (chat(said("critic", "a")), "chat: the model's chat template refuses it: no critics here"),
        (chat(said("user", "a"), tools_json="[1]"), "chat.tools_json[0]: is no JSON object"),
        (
            chat(said("user", "a"), said("user", "b"), continue_final_message=True),
            "chat.continue_final_message: the last message is of 'user', not of 'assistant'",
        ),
    ],
)
async def test_both_refuse_a_bad_conversation_alike(stage: Stage, conversation, fault: str):
    request = pb.GenerateRequest(chat=conversation)
    for call in (
        stage.client.stub.Tokenize(pb.TokenizeRequest(chat=conversation)),
        stage.client.generate(request, timeout_s=ANSWER_S),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await call
        assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert raised.value.details() == fault


async def test_a_cut_prompt_is_the_end_of_what_tokenize_says(stage: Stage):
    """truncate_prompt_tokens cuts the beginning of the template off, its first token included."""
    conversation, _ = CHATS["everything"]
    answer = await stage.client.stub.Tokenize(pb.TokenizeRequest(chat=conversation))
    ids = list(answer.token_ids)[-9:]
    request = generate_request("", PARAMS, target_only=True)
    request.chat.CopyFrom(conversation)
    request.sampling_params.truncate_prompt_tokens = 9
    output = await stage.client.generate(request, timeout_s=ANSWER_S)
    assert output.complete.prompt_tokens == 9
    assert output.token_ids == (await stage.plain(ids, PARAMS)).token_ids
