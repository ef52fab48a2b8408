"""What is said reaches the model as it was said, in the fields that chat templates read."""

import json

import pytest

from openai_svc.chat import ChatBody
from openai_svc.completions import CompletionBody
from outrider.v1 import generation_pb2 as pb
from tests.unit.openai_svc.bodies import HELLO, chat, refused, requests

TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": '{"a": 1}'}}


def test_messages_keep_their_order_and_their_parts():
    request = chat(
        messages=[
            {"role": "developer", "content": "be kind"},
            {"role": "user", "content": [{"type": "text", "text": t} for t in "ab"], "name": "me"},
            {"role": "assistant", "content": None, "refusal": None, "tool_calls": [CALL]},
            {"role": "tool", "content": "3", "tool_call_id": "c1"},
        ]
    )
    messages = [(m.role, m.content, m.extra_json) for m in request.chat.messages]
    assert messages[0] == ("system", "be kind", "")
    assert messages[1][:2] == ("user", "a\nb")
    assert json.loads(messages[1][2]) == {"name": "me"}
    function = {"name": "weather", "arguments": {"a": 1}}
    called = {"tool_calls": [{"id": "c1", "type": "function", "function": function}]}
    assert messages[2][:2] == ("assistant", "")
    assert json.loads(messages[2][2]) == called
    assert json.loads(messages[3][2]) == {"tool_call_id": "c1"}


@pytest.mark.parametrize("arguments", ["", "{}"])
def test_a_call_may_have_no_arguments(arguments: str):
    call = {**CALL, "function": {"name": "f", "arguments": arguments}}
    request = chat(messages=[{"role": "assistant", "tool_calls": [call]}])
    extra = json.loads(request.chat.messages[0].extra_json)
    assert extra["tool_calls"][0]["function"]["arguments"] == {}


@pytest.mark.parametrize(
    "arguments", ['{"a": "\\ud800"}', '{"a": ' + "[" * 100_000 + "]" * 100_000 + "}"]
)
def test_arguments_that_only_break_when_written_or_read_are_refused(arguments: str):
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}
    error = refused(ChatBody, {"messages": [*HELLO, {"role": "assistant", "tool_calls": [call]}]})
    assert error.param == "messages[1].tool_calls[0].function.arguments"


@pytest.mark.parametrize("arguments", ["{", "[]", "x"])
def test_arguments_that_no_template_can_read_are_refused(arguments: str):
    call = {**CALL, "function": {"name": "f", "arguments": arguments}}
    error = refused(ChatBody, {"messages": [{"role": "assistant", "tool_calls": [call]}]})
    assert error.param == "messages[0].tool_calls[0].function.arguments"


def test_tools_are_told_unless_none_may_be_called():
    assert json.loads(chat(tools=[TOOL]).chat.tools_json) == [TOOL]
    assert json.loads(chat(tools=[TOOL], tool_choice="auto").chat.tools_json) == [TOOL]
    assert chat(tools=[TOOL], tool_choice="none").chat.tools_json == ""
    assert chat().chat.tools_json == ""


def test_the_last_message_may_be_continued():
    begun = [*HELLO, {"role": "assistant", "content": "Well"}]
    request = chat(
        messages=begun,
        continue_final_message=True,
        add_generation_prompt=False,
        chat_template_kwargs={"enable_thinking": False},
    )
    assert request.chat.continue_final_message
    assert json.loads(request.chat.template_kwargs_json) == {"enable_thinking": False}
    assert not chat(add_generation_prompt=True).chat.continue_final_message


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("a", ["a"]),
        ("", [""]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1], [2, 3]], [[1], [2, 3]]),
    ],
)
def test_prompts(prompt, expected):
    def input_of(request: pb.GenerateRequest) -> str | list[int]:
        is_text = request.WhichOneof("input") == "text"
        return request.text if is_text else list(request.tokenized.input_ids)

    assert list(map(input_of, requests(CompletionBody, {"prompt": prompt}))) == expected
