"""What clients send as JSON is read within limits, and named where it is none."""

import json
from typing import Any

import pytest

from orchestrator.chat import MAX_JSON_CHARACTERS, MAX_MESSAGES, Chat
from outrider.errors import InvalidField

USER = ("user", "hello", "")


def read(
    *messages: tuple[str, str, str], tools: str = "", variables: str = "", continues: bool = False
) -> Chat:
    return Chat.read(
        messages or (USER,),
        tools_json=tools,
        template_kwargs_json=variables,
        continue_final_message=continues,
    )


def test_what_a_client_leaves_out_is_not_there():
    assert read() == Chat(({"role": "user", "content": "hello"},))


def test_everything_is_read():
    call = [{"function": {"name": "f", "arguments": {"a": [1, 2.5, None, True, "ü"]}}}]
    extra = {"tool_calls": call, "name": "x"}
    chat = read(
        ("assistant", "", json.dumps(extra)),
        tools='[{"type": "function"}, {}]',
        variables='{"enable_thinking": false}',
        continues=True,
    )
    assert chat.messages == ({"role": "assistant", "content": "", **extra},)
    assert chat.tools == [{"type": "function"}, {}]
    assert chat.variables == {"enable_thinking": False}
    assert chat.continue_final_message
    assert read(tools="[]").tools == [], "an empty list is not the same as none"


@pytest.mark.parametrize("content", [None, [{"type": "text", "text": "x"}]])
def test_content_that_is_no_text_stands_in_place_of_an_empty_one(content: Any):
    chat = read(("user", "", json.dumps({"content": content})))
    assert chat.messages[0]["content"] == content


LONG = json.dumps("x" * MAX_JSON_CHARACTERS)
BAD = {
    "no JSON": ("{", "is no JSON: Expecting"),
    "two values": ("{} {}", "is no JSON: Extra data"),
    "NaN": ('{"a": NaN}', "NaN is no number of JSON"),
    "-Infinity": ("[-Infinity]", "-Infinity is no number of JSON"),
    "a number of 5000 digits": (f"[{'9' * 5000}]", "is no JSON: "),
    "half a surrogate pair": ('["\\ud800"]', "is no JSON: 'utf-8' codec"),
    "half a pair in a name": ('{"\\udfff": 1}', "is no JSON: 'utf-8' codec"),
    "too deep": ("[" * 100_000 + "]" * 100_000, "is nested too deeply"),
    "too long": (LONG, f"{len(LONG)} characters, at most {MAX_JSON_CHARACTERS}"),
}


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize(
    ("field", "given"),
    [
        ("chat.tools_json", lambda text: {"tools": text}),
        ("chat.template_kwargs_json", lambda text: {"variables": text}),
        ("chat.messages[1].extra_json", lambda text: {"messages": (USER, ("tool", "x", text))}),
    ],
)
def test_bad_json_is_named_by_its_field(field, given, bad):
    text, fault = BAD[bad]
    changed = given(text)
    with pytest.raises(InvalidField) as refused:
        read(*changed.pop("messages", ()), **changed)
    assert refused.value.field == field
    assert fault in str(refused.value)
    str(refused.value).encode()  # it travels to the client


@pytest.mark.parametrize(
    ("messages", "tools", "variables", "fault"),
    [
        ((USER,), "{}", "", "chat.tools_json: is no JSON array"),
        ((USER,), "null", "", "chat.tools_json: is no JSON array"),
        ((USER,), '[{}, "f"]', "", r"chat.tools_json\[1\]: is no JSON object"),
        ((USER,), "", "[]", "chat.template_kwargs_json: is no JSON object"),
        ((("user", "x", "[]"),), "", "", r"chat.messages\[0\].extra_json: is no JSON object"),
        (
            (("user", "x", '{"role": "system"}'),),
            "",
            "",
            r"chat.messages\[0\].extra_json: role is a field of the message itself",
        ),
        (
            (USER, ("user", "x", '{"content": "y"}')),
            "",
            "",
            r"chat.messages\[1\].extra_json: content is a field of the message itself",
        ),
        ((USER,) * (MAX_MESSAGES + 1), "", "", f"chat.messages: .*at most {MAX_MESSAGES}"),
    ],
)
def test_json_of_another_kind_is_refused(messages, tools, variables, fault):
    with pytest.raises(InvalidField, match=fault):
        read(*messages, tools=tools, variables=variables)


def test_the_longest_json_is_read():
    text = json.dumps(["x" * (MAX_JSON_CHARACTERS - 4)])
    assert len(text) == MAX_JSON_CHARACTERS
    with pytest.raises(InvalidField, match=r"\[0\]: is no JSON object"):
        read(tools=text)
