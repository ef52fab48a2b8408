"""What a program writes becomes the message that says so, and nothing else."""

import json

import pytest

from outrider.client import collect, generate_request
from outrider.errors import InvalidField
from outrider.sampling import AcceptanceRule, SamplingParams
from outrider.v1 import generation_pb2 as pb

TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"ort": "Köln"}}}


def test_a_plain_request_says_only_what_was_said():
    assert generate_request("x") == pb.GenerateRequest(text="x")
    assert generate_request([]) == pb.GenerateRequest(tokenized=pb.TokenizedInput())
    assert generate_request((1, 2)).tokenized.input_ids == [1, 2]


def test_speculation_options():
    request = generate_request(
        "x",
        sources=["ngram"],
        min_draft_tokens=2,
        max_draft_tokens=5,
        acceptance_rule=AcceptanceRule.BLOCK,
        trace_top_ids=3,
    )
    assert request.speculation == pb.SpeculationOptions(
        sources=["ngram"],
        min_draft_tokens=2,
        max_draft_tokens=5,
        acceptance_rule=pb.ACCEPTANCE_RULE_BLOCK,
        trace_top_ids=3,
    )
    # A zero is said, so that the server can refuse it.
    zero = generate_request("x", num_draft_tokens=0)
    assert zero.speculation.HasField("num_draft_tokens")


def test_messages_keep_what_only_the_template_reads():
    called = {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
    request = generate_request([("user", "hallo"), called], tools=[TOOL])
    assert request.chat.messages[0] == pb.ChatMessage(role="user", content="hallo")
    assert request.chat.messages[1].content == ""
    assert json.loads(request.chat.messages[1].extra_json) == {"tool_calls": [{"id": "1"}]}
    assert json.loads(request.chat.tools_json) == [TOOL]
    assert "Köln" in request.chat.tools_json
    continued = generate_request(
        [("assistant", "he")], continue_final_message=True, template_kwargs={"think": False}
    )
    assert continued.chat.continue_final_message
    assert json.loads(continued.chat.template_kwargs_json) == {"think": False}


@pytest.mark.parametrize(
    ("messages", "field"),
    [
        ([{"content": "x"}], "chat.messages[0].role"),
        ([("user", "x"), {"role": "user", "content": ["x"]}], "chat.messages[1].content"),
    ],
)
def test_a_message_without_role_or_text_is_refused(messages, field):
    with pytest.raises(InvalidField) as error_info:
        generate_request(messages)
    assert error_info.value.field == field


@pytest.mark.parametrize(
    "how", [{"tools": [TOOL]}, {"template_kwargs": {"a": 1}}, {"continue_final_message": True}]
)
def test_what_a_template_reads_needs_messages(how):
    with pytest.raises(InvalidField, match="need messages"):
        generate_request("x", **how)


def test_every_sampling_parameter_arrives():
    sampling = SamplingParams(n=2, logprobs=1, logit_bias=((3, 1.0),), bad_words=("x",))
    assert SamplingParams.from_proto(generate_request("x", sampling).sampling_params) == sampling


def chunk(text: str, index: int = 0) -> pb.GenerateResponse:
    return pb.GenerateResponse(chunk=pb.GenerateChunk(text=text, index=index))


def complete(index: int = 0, *ids: int) -> pb.GenerateResponse:
    return pb.GenerateResponse(complete=pb.GenerateComplete(index=index, output_ids=ids))


def test_choices_that_grow_side_by_side_are_told_apart():
    output = collect(
        [chunk("a"), chunk("x", 1), complete(1, 7), chunk("b"), complete(0, 1, 2), complete(2)]
    )
    assert [choice.text for choice in output.choices] == ["ab", "x", ""]
    assert [choice.token_ids for choice in output.choices] == [[1, 2], [7], []]
    assert (output.text, output.token_ids, len(output.chunks)) == ("ab", [1, 2], 2)


@pytest.mark.parametrize("responses", [[], [chunk("a")], [complete(), chunk("x", 1)]])
def test_a_stream_without_its_end_is_no_output(responses):
    with pytest.raises(RuntimeError, match="without a completion"):
        collect(responses)
