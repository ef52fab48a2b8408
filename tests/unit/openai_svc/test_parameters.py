"""Every parameter becomes the field that means it; what is wrong is refused under its own name."""

import json

import pytest

from openai_svc.chat import ChatBody
from openai_svc.completions import CompletionBody
from outrider.sampling import Constraint, ConstraintKind, SamplingParams
from outrider.v1 import generation_pb2 as pb
from tests.unit.openai_svc.bodies import HELLO, chat, completion, refused

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
SAMPLING = {
    "temperature": ({"temperature": 0}, {"temperature": 0.0}),
    "nucleus": ({"top_p": 0.5, "top_k": 4, "min_p": 0.125}, None),
    "penalties": (
        {"presence_penalty": 1, "frequency_penalty": -1.5, "repetition_penalty": 1.25},
        None,
    ),
    "a seed": ({"seed": -7}, None),
    "choices": ({"n": 3}, None),
    "one stop": ({"stop": "x"}, {"stop": ("x",)}),
    "stops": ({"stop": ["x", "y"]}, {"stop": ("x", "y")}),
    "ends": (
        {"stop_token_ids": [3], "include_stop_str_in_output": True, "ignore_eos": True},
        {"stop_token_ids": (3,), "include_stop_str_in_output": True, "ignore_eos": True},
    ),
    "a bias": ({"logit_bias": {"7": -100, "3": 1}}, {"logit_bias": ((3, 1.0), (7, -100.0))}),
    "masks": (
        {"allowed_token_ids": [1, 2], "banned_token_ids": [2], "bad_words": ["x"]},
        {"allowed_token_ids": (1, 2), "banned_token_ids": (2,), "bad_words": ("x",)},
    ),
    "special tokens": ({"skip_special_tokens": False}, None),
    "a cut": ({"truncate_prompt_tokens": 5}, None),
    "prompt logprobs": ({"prompt_logprobs": 0}, None),
    "free text": ({"response_format": {"type": "text"}}, {}),
    "any object": (
        {"response_format": {"type": "json_object"}},
        {"constraint": Constraint(ConstraintKind.JSON_OBJECT)},
    ),
    "a schema": (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMA}}},
        {"constraint": Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(SCHEMA))},
    ),
    "a schema of other servers": (
        {"structured_outputs": {"json": SCHEMA}},
        {"constraint": Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(SCHEMA))},
    ),
    "a schema as text": (
        {"structured_outputs": {"json": "{}"}},
        {"constraint": Constraint(ConstraintKind.JSON_SCHEMA, "{}")},
    ),
    "an expression behind thoughts": (
        {"structured_outputs": {"regex": "[0-9]", "after": "</think>"}},
        {"constraint": Constraint(ConstraintKind.REGEX, "[0-9]", after="</think>")},
    ),
    "a grammar": (
        {"structured_outputs": {"grammar": "start: A"}},
        {"constraint": Constraint(ConstraintKind.GRAMMAR, "start: A")},
    ),
    "one of two": (
        {"structured_outputs": {"choice": ["a", "b"]}},
        {"constraint": Constraint(ConstraintKind.CHOICE, choices=("a", "b"))},
    ),
    "any object of other servers": (
        {"structured_outputs": {"json_object": True}},
        {"constraint": Constraint(ConstraintKind.JSON_OBJECT)},
    ),
    "null": (dict.fromkeys(("temperature", "stop", "logit_bias", "n", "seed", "user")), {}),
    "who asks": (
        {"user": "u", "metadata": {"a": "b"}, "safety_identifier": "s", "prompt_cache_key": "k"},
        {},
    ),
    "what is so anyway": ({"store": False, "service_tier": "auto"}, {}),
}


@pytest.mark.parametrize("case", SAMPLING)
def test_sampling(case: str):
    fields, expected = SAMPLING[case]
    params = SamplingParams(**(fields if expected is None else expected))
    assert SamplingParams.from_proto(chat(**fields).sampling_params) == params
    by_default = SamplingParams.from_proto(completion(**fields).sampling_params)
    assert by_default.max_tokens == 16
    assert SamplingParams.from_proto(
        completion(**fields, max_tokens=99).sampling_params
    ) == SamplingParams(**(fields if expected is None else expected), max_tokens=99)


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
def test_a_conversation_has_two_names_for_its_limit(name: str):
    assert chat(**{name: 5}).sampling_params.max_tokens == 5
    assert refused(ChatBody, {"messages": HELLO, name: 0}).param == name
    assert not chat().sampling_params.HasField("max_tokens")


@pytest.mark.parametrize(
    ("fields", "logprobs"),
    [({}, None), ({"logprobs": True}, 0), ({"logprobs": True, "top_logprobs": 5}, 5)],
)
def test_log_probabilities_of_a_conversation(fields, logprobs):
    assert SamplingParams.from_proto(chat(**fields).sampling_params).logprobs == logprobs


def test_log_probabilities_of_a_completion():
    params = completion(logprobs=2).sampling_params
    assert (params.logprobs, params.HasField("prompt_logprobs")) == (2, False)
    params = completion(logprobs=2, echo=True, max_tokens=0).sampling_params
    assert (params.logprobs, params.prompt_logprobs, params.max_tokens) == (2, 2, 1)


def test_speculation_and_the_rest_of_the_request():
    speculation = {
        "sources": ["ngram"],
        "min_draft_tokens": 1,
        "max_draft_tokens": 4,
        "acceptance_rule": "block",
    }
    request = chat(speculation=speculation, priority=-3, cache_salt="s", model="m")
    assert request.speculation == pb.SpeculationOptions(
        **{**speculation, "acceptance_rule": pb.ACCEPTANCE_RULE_BLOCK}
    )
    assert (request.priority, request.cache_salt, request.model) == (-3, "s", "m")
    assert completion(speculation={"target_only": True}).speculation.target_only
    assert completion(speculation={"num_draft_tokens": 2}).speculation.num_draft_tokens == 2
    assert not chat().HasField("speculation")


BOTH = {
    "foo": ({"foo": None}, "foo", "unknown_parameter"),
    "no number": ({"temperature": "1"}, "temperature", "invalid_value"),
    "no boolean": ({"stream": 1}, "stream", "invalid_value"),
    "beyond a limit": ({"top_p": 1.5}, "top_p", "invalid_value"),
    "no number at all": ({"temperature": float("nan")}, "temperature", "invalid_value"),
    "too many choices": ({"n": 17}, "n", "invalid_value"),
    "an id below 0": ({"logit_bias": {"-1": 1}}, "logit_bias.-1", "invalid_value"),
    "no id": ({"logit_bias": {"x": 1}}, "logit_bias.x", "invalid_value"),
    "a bias beyond its limit": ({"logit_bias": {"5": 101}}, "logit_bias[5]", "invalid_value"),
    "no stop": ({"stop": [""]}, "stop[0]", "invalid_value"),
    "a number as stop": ({"stop": ["a", 1]}, "stop[1]", "invalid_value"),
    "stop ids": ({"stop_token_ids": [2**32]}, "stop_token_ids[0]", "invalid_value"),
    "storing": ({"store": True}, "store", "invalid_value"),
    "a tier": ({"service_tier": "flex"}, "service_tier", "invalid_value"),
    "options without a stream": (
        {"stream_options": {"include_usage": True}},
        "stream_options",
        "invalid_value",
    ),
    "obfuscation": (
        {"stream": True, "stream_options": {"include_obfuscation": True}},
        "stream_options.include_obfuscation",
        "invalid_value",
    ),
    "prompt logprobs in a stream": (
        {"prompt_logprobs": 1, "stream": True},
        "prompt_logprobs",
        "invalid_value",
    ),
    "two formats": (
        {
            "response_format": {"type": "json_object"},
            "structured_outputs": {"regex": "a"},
        },
        "structured_outputs",
        "invalid_value",
    ),
    "two constraints": (
        {"structured_outputs": {"regex": "a", "choice": ["a"]}},
        "structured_outputs",
        "invalid_value",
    ),
    "no constraint": ({"structured_outputs": {}}, "structured_outputs", "invalid_value"),
    "a schema that is none": (
        {"structured_outputs": {"json": 5}},
        "structured_outputs.json",
        "invalid_value",
    ),
    "an unknown constraint": (
        {"structured_outputs": {"structural_tag": "x"}},
        "structured_outputs.structural_tag",
        "unknown_parameter",
    ),
    "an empty expression": (
        {"structured_outputs": {"regex": ""}},
        "structured_outputs.regex",
        "invalid_value",
    ),
    "equal choices": (
        {"structured_outputs": {"choice": ["a", "a"]}},
        "structured_outputs.choice",
        "invalid_value",
    ),
    "a form without its schema": (
        {"response_format": {"type": "json_schema"}},
        "response_format",
        "invalid_value",
    ),
    "an endless schema": (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"schema": {"title": "x" * 2**18}},
            }
        },
        "response_format",
        "invalid_value",
    ),
    "an unknown form": (
        {"response_format": {"type": "xml"}},
        "response_format.type",
        "invalid_value",
    ),
    "an unknown rule": (
        {"speculation": {"acceptance_rule": "typical"}},
        "speculation.acceptance_rule",
        "invalid_value",
    ),
    "drafts below none": (
        {"speculation": {"num_draft_tokens": -1}},
        "speculation.num_draft_tokens",
        "invalid_value",
    ),
    "nothing allowed": ({"allowed_token_ids": []}, "allowed_token_ids", "invalid_value"),
    "an unknown option": (
        {"speculation": {"temperature": 1}},
        "speculation.temperature",
        "unknown_parameter",
    ),
}
CHAT = {
    "a list": ([], None, "invalid_value"),
    "no messages": ({}, "messages", "missing_required_parameter"),
    "empty messages": ({"messages": []}, "messages", "invalid_value"),
    "no role": ({"messages": [{"content": "x"}]}, "messages[0].role", "missing_required_parameter"),
    "a new role": (
        {"messages": [{"role": "critic", "content": "x"}]},
        "messages[0].role",
        "invalid_value",
    ),
    "an image": (
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        "messages[0].content[0].type",
        "invalid_value",
    ),
    "a number": (
        {"messages": [{"role": "user", "content": 1}]},
        "messages[0].content",
        "invalid_value",
    ),
    "nothing said": ({"messages": [{"role": "user"}]}, "messages[0].content", "invalid_value"),
    "a field of nobody": (
        {"messages": [{"role": "user", "content": "x", "mood": "bad"}]},
        "messages[0].mood",
        "unknown_parameter",
    ),
    "an answer to no call": (
        {"messages": [{"role": "tool", "content": "x"}]},
        "messages[0].tool_call_id",
        "invalid_value",
    ),
    "two limits": (
        {"messages": HELLO, "max_tokens": 1, "max_completion_tokens": 1},
        "max_tokens",
        "invalid_value",
    ),
    "the number alone": ({"messages": HELLO, "top_logprobs": 1}, "top_logprobs", "invalid_value"),
    "too many logprobs": (
        {"messages": HELLO, "logprobs": True, "top_logprobs": 65},
        "top_logprobs",
        "invalid_value",
    ),
    "a tool that must be called": (
        {"messages": HELLO, "tool_choice": "required"},
        "tool_choice",
        "invalid_value",
    ),
    "one call at a time": (
        {"messages": HELLO, "parallel_tool_calls": False},
        "parallel_tool_calls",
        "invalid_value",
    ),
    "sound": ({"messages": HELLO, "modalities": ["audio"]}, "modalities", "invalid_value"),
    "effort": ({"messages": HELLO, "reasoning_effort": "low"}, "reasoning_effort", "invalid_value"),
    "functions": ({"messages": HELLO, "functions": []}, "functions", "invalid_value"),
    "nothing to continue": (
        {"messages": HELLO, "continue_final_message": True},
        "continue_final_message",
        "invalid_value",
    ),
    "both at once": (
        {
            "messages": [*HELLO, {"role": "assistant", "content": "x"}],
            "continue_final_message": True,
            "add_generation_prompt": True,
        },
        "add_generation_prompt",
        "invalid_value",
    ),
}
COMPLETION = {
    "no prompt": ({}, "prompt", "missing_required_parameter"),
    "an empty list": ({"prompt": []}, "prompt", "invalid_value"),
    "texts and ids": ({"prompt": ["a", [1]]}, "prompt", "invalid_value"),
    "no ids": ({"prompt": [1, True]}, "prompt", "invalid_value"),
    "an id below 0": ({"prompt": [-1]}, "prompt", "invalid_value"),
    "too many": ({"prompt": ["a"] * 129}, "prompt", "invalid_value"),
    "a suffix": ({"prompt": "a", "suffix": "b"}, "suffix", "invalid_value"),
    "the best": ({"prompt": "a", "best_of": 2}, "best_of", "invalid_value"),
    "no tokens": ({"prompt": "a", "max_tokens": 0}, "max_tokens", "invalid_value"),
    "an echo of a cut prompt": (
        {"prompt": "a", "echo": True, "truncate_prompt_tokens": 1},
        "echo",
        "invalid_value",
    ),
    "an echo that comes too late": (
        {"prompt": "a", "echo": True, "logprobs": 1, "stream": True},
        "logprobs",
        "invalid_value",
    ),
    "messages": ({"prompt": "a", "messages": HELLO}, "messages", "unknown_parameter"),
}
REFUSED = [
    *((ChatBody, {"messages": HELLO, **body}, param, code) for body, param, code in BOTH.values()),
    *(
        (CompletionBody, {"prompt": "a", **body}, param, code)
        for body, param, code in BOTH.values()
    ),
    *((ChatBody, *case) for case in CHAT.values()),
    *((CompletionBody, *case) for case in COMPLETION.values()),
]


@pytest.mark.parametrize(
    ("kind", "body", "param", "code"),
    REFUSED,
    ids=[*(f"{n}, chat" for n in BOTH), *(f"{n}, completion" for n in BOTH), *CHAT, *COMPLETION],
)
def test_what_is_wrong_is_refused_by_name(kind, body, param, code):
    error = refused(kind, body)
    assert (error.status, error.param, error.code) == (400, param, code)
    assert str(error).startswith(f"{param or 'body'}: ")
    assert error.body["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("body", "field", "param"),
    [
        (ChatBody(messages=HELLO), "input", "messages"),
        (ChatBody(messages=HELLO), "chat.messages[3].role", "messages[3].role"),
        (ChatBody(messages=HELLO), "sampling_params.stop[1]", "stop[1]"),
        (ChatBody(messages=HELLO), "sampling_params.logprobs", "logprobs"),
        (ChatBody(messages=HELLO), "speculation.sources", "speculation.sources"),
        (ChatBody(messages=HELLO), "chat.tools_json", "tools"),
        (
            ChatBody(messages=HELLO),
            "chat.template_kwargs_json.thinks",
            "chat_template_kwargs.thinks",
        ),
        (
            ChatBody(messages=HELLO),
            "sampling_params.json_schema.x-guidance",
            "structured_outputs.json.x-guidance",
        ),
        (
            ChatBody(messages=HELLO, response_format={"type": "json_object"}),
            "sampling_params.json_schema.x-guidance",
            "response_format",
        ),
        (CompletionBody(prompt="a"), "tokenized.input_ids[2]", "prompt[2]"),
        (CompletionBody(prompt="a"), "token_ids[2]", "prompt[2]"),
        (CompletionBody(prompt="a"), "sampling_params.max_tokens", "max_tokens"),
        (CompletionBody(prompt="a"), "sampling_params.regex", "structured_outputs.regex"),
        (
            CompletionBody(prompt="a", response_format={"type": "json_object"}),
            "sampling_params.json_object",
            "response_format",
        ),
    ],
)
def test_a_field_of_the_orchestrator_has_the_callers_name(body, field, param):
    assert body.param(field) == param
