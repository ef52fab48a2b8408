"""What the orchestrator says, as OpenAI's clients read it: whole and in a stream."""

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import httpx2
import openai
import pytest

from openai_svc.servicer import EventStream
from outrider.errors import IdentityMismatch, InvalidField, NotFound, ResourceExhausted, Unavailable
from outrider.v1 import generation_pb2 as pb
from tests.integration.openai_svc.scripted import (
    EOS,
    Stage,
    chunk,
    complete,
    logprob,
    open_stage,
)
from tests.openai_door import openai_client

pytestmark = pytest.mark.integration

HELLO = [{"role": "user", "content": "hello"}]
USAGE = {
    "prompt_tokens": 5,
    "completion_tokens": 2,
    "total_tokens": 7,
    "prompt_tokens_details": {"cached_tokens": 4},
}


async def post(stage: Stage, path: str, body: object, **headers: str | bytes) -> httpx2.Response:
    async with httpx2.AsyncClient(base_url=stage.url, timeout=30) as http:
        return await http.post(f"/v1/{path}", content=json.dumps(body), headers=headers)


async def chat(stage: Stage, **fields: object) -> dict:
    answer = await post(stage, "chat/completions", {"model": "m", "messages": HELLO, **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def completion(stage: Stage, **fields: object) -> dict:
    answer = await post(stage, "completions", {"model": "m", "prompt": "he", **fields})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def events(stage: Stage, path: str, **fields: object) -> list[dict | str]:
    """The data of all events, [DONE] as it is."""
    answer = await post(stage, path, {"model": "m", "stream": True, **fields})
    assert answer.headers["content-type"].startswith("text/event-stream")
    parts = answer.text.split("\n\n")
    assert parts.pop() == ""
    data = [part.removeprefix("data: ") for part in parts]
    return [each if each == "[DONE]" else json.loads(each) for each in data]


async def test_a_whole_answer():
    async with open_stage(chunk("h"), chunk("", "é"), complete()) as stage:
        answer = await chat(stage, outrider_receipt=True)
        assert stage.orchestrator.requests[0].model == "m"
    receipt = {
        "request_id": "r",
        "decision": "on",
        "rule": "coupled",
        "seed": 7,
        "mean_acceptance_length": 2.5,
        "num_spec_steps": 2,
        "num_draft_tokens": 8,
        "num_accepted_draft_tokens": 3,
        "num_target_passes": 4,
    }
    assert answer.pop("id").startswith("chatcmpl-")
    assert answer.pop("created") > 1.7e9
    assert answer == {
        "object": "chat.completion",
        "model": "m",
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "hé", "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
                "stop_reason": None,
                "outrider": receipt,
            }
        ],
        "usage": USAGE,
    }


async def test_a_stream_begins_with_the_role_and_ends_with_the_reason():
    script = chunk("h"), chunk(""), chunk("i"), complete(reason=pb.FINISH_REASON_LENGTH)
    async with open_stage(*script) as stage:
        *heads, done = await events(stage, "chat/completions", messages=HELLO)
    assert done == "[DONE]"
    assert len({(e["id"], e["created"], e["model"], e["object"]) for e in heads}) == 1
    assert heads[0]["object"] == "chat.completion.chunk"
    assert all("usage" not in event for event in heads)
    choices = [choice for event in heads for choice in event["choices"]]
    role, *texts, last = choices
    assert role["delta"] == {"role": "assistant", "content": "", "refusal": None}
    assert [choice["delta"] for choice in texts] == [{"content": "h"}, {"content": "i"}]
    assert {choice["finish_reason"] for choice in (role, *texts)} == {None}
    assert (last["delta"], last["finish_reason"]) == ({}, "length")


@pytest.mark.parametrize("path", ["chat/completions", "completions"])
async def test_usage_comes_behind_everything_else(path: str):
    what = {"messages": HELLO} if path == "chat/completions" else {"prompt": "he"}
    async with open_stage(chunk("h"), complete()) as stage:
        options = {"include_usage": True}
        *texts, usage, done = await events(stage, path, stream_options=options, **what)
    assert {event["usage"] for event in texts} == {None}
    assert (usage["choices"], usage["usage"], done) == ([], USAGE, "[DONE]")


async def test_a_stream_of_a_completion():
    async with open_stage(chunk("h"), chunk("i"), complete()) as stage:
        *texts, last, _ = await events(stage, "completions", prompt="he", echo=True)
    assert [event["choices"][0]["text"] for event in texts] == ["he", "h", "i"]
    end = last["choices"][0]
    assert (end["text"], end["finish_reason"]) == ("", "stop")
    assert last["object"] == "text_completion"


async def test_choices_that_grow_side_by_side():
    script = (
        *(chunk("a", index=1), chunk("b"), chunk("c", index=1)),
        *(complete(1, tokens=3), complete(0, tokens=1)),
    )
    async with open_stage(*script) as stage:
        answer = await completion(stage, n=2)
        assert stage.orchestrator.requests[0].sampling_params.n == 2
        *streamed, _ = await events(stage, "completions", prompt="he", n=2)
    assert [(c["index"], c["text"]) for c in answer["choices"]] == [(0, "b"), (1, "ac")]
    # The prompt was read once.
    assert answer["usage"] == {**USAGE, "completion_tokens": 4, "total_tokens": 9}
    texts = {0: "", 1: ""}
    for event in streamed:
        texts[event["choices"][0]["index"]] += event["choices"][0]["text"]
    assert texts == {0: "b", 1: "ac"}


async def test_several_prompts_are_several_calls_of_one_answer():
    async with open_stage(chunk("x"), complete(0), chunk("y", index=1), complete(1)) as stage:
        answer = await completion(stage, prompt=["he", "you"], n=2, echo=True)
        asked = {request.text for request in stage.orchestrator.requests}
        assert len(set(stage.orchestrator.request_ids)) == 1
        *streamed, done = await events(stage, "completions", prompt=["he", "you"], n=2)
    assert asked == {"he", "you"}
    assert [c["index"] for c in answer["choices"]] == [0, 1, 2, 3]
    assert [c["text"] for c in answer["choices"]] == ["hex", "hey", "youx", "youy"]
    assert answer["usage"]["prompt_tokens"] == 10
    assert answer["usage"]["completion_tokens"] == 8
    assert {event["choices"][0]["index"] for event in streamed} == {0, 1, 2, 3}
    assert done == "[DONE]"


@pytest.mark.parametrize(
    ("matched", "stop_reason"),
    [
        ({"matched_stop_str": "END"}, "END"),
        ({"matched_token_id": 8}, 8),
        ({"matched_token_id": EOS}, None),
        ({}, None),
    ],
)
async def test_what_ended_an_answer(matched, stop_reason):
    async with open_stage(chunk("h"), complete(**matched)) as stage:
        (choice,) = (await chat(stage))["choices"]
    assert choice["stop_reason"] == stop_reason


LOGPROBS = [logprob(2, -0.5, t2=-0.5, t5=-1.5), logprob(3, -2.0), logprob(4, float("-inf"))]


async def test_log_probabilities_of_a_conversation():
    script = (
        chunk("he", ids=[2], logprobs=LOGPROBS[:1]),
        chunk("", "é", ids=[3, 4], logprobs=LOGPROBS[1:]),
        complete(),
    )
    async with open_stage(*script) as stage:
        (choice,) = (await chat(stage, logprobs=True, top_logprobs=2))["choices"]
        assert stage.orchestrator.num_detokenized == 4
        asked = {"messages": HELLO, "logprobs": True, "top_logprobs": 2}
        *streamed, _ = await events(stage, "chat/completions", **asked)
        assert stage.orchestrator.num_detokenized == 4  # none was asked for twice
    he, first, second = choice["logprobs"]["content"]
    assert he == {
        "token": "he",
        "logprob": -0.5,
        "bytes": [104, 101],
        "top_logprobs": [
            {"token": "he", "logprob": -0.5, "bytes": [104, 101]},
            {"token": " you", "logprob": -1.5, "bytes": list(b" you")},
        ],
    }
    assert first["token"] == "bytes:\\xc3"
    assert bytes(first["bytes"] + second["bytes"]).decode() == "é"
    assert second["logprob"] == -9999.0
    told = [event["choices"][0]["logprobs"] for event in streamed]
    assert [e for each in told if each for e in each["content"]] == choice["logprobs"]["content"]
    # Tokens without text of their own are told when they come.
    texts = [event["choices"][0]["delta"].get("content") for event in streamed]
    assert texts == ["", "he", "é", None]


async def test_log_probabilities_of_a_completion():
    script = (
        chunk("he", ids=[2], logprobs=LOGPROBS[:1]),
        chunk("", "é", "!", ids=[3, 4, 6], logprobs=[*LOGPROBS[1:], logprob(6, -0.25)]),
        complete(),
    )
    async with open_stage(*script) as stage:
        (choice,) = (await completion(stage, logprobs=2))["choices"]
        *streamed, _ = await events(stage, "completions", prompt="he", logprobs=2)
    assert choice["logprobs"] == {
        "text_offset": [0, 2, 2, 3],
        "tokens": ["he", "bytes:\\xc3", "bytes:\\xa9", "!"],
        "token_logprobs": [-0.5, -2.0, -9999.0, -0.25],
        "top_logprobs": [
            {"he": -0.5, " you": -1.5},
            {"bytes:\\xc3": -2.0},
            {"bytes:\\xa9": -9999.0},
            {"!": -0.25},
        ],
    }
    told = [event["choices"][0]["logprobs"] for event in streamed]
    assert [i for each in told if each for i in each["text_offset"]] == [0, 2, 2, 3]


@pytest.mark.parametrize(("prompt", "max_tokens"), [("heé you!", 0), ([1, 2, 3, 4, 5, 6], 1)])
async def test_a_prompt_comes_back_with_its_log_probabilities(prompt, max_tokens):
    read = [logprob(i, -float(i), t2=-0.5) for i in (2, 3, 4, 5, 6)]
    script = chunk("he", ids=[2], logprobs=LOGPROBS[:1]), complete(tokens=1, prompt_logprobs=read)
    async with open_stage(*script) as stage:
        asked = {"prompt": prompt, "logprobs": 1, "echo": True, "max_tokens": max_tokens}
        answer = await completion(stage, **asked)
    (choice,) = answer["choices"]
    text = prompt if isinstance(prompt, str) else "<s>heé you!"
    start = len(text) - len("heé you!")
    output = ["he"] * max_tokens
    assert choice["text"] == text + "".join(output)
    assert answer["usage"]["completion_tokens"] == max_tokens
    told = choice["logprobs"]
    assert told["tokens"] == ["<s>", "he", "bytes:\\xc3", "bytes:\\xa9", " you", "!", *output]
    assert told["token_logprobs"] == [None, -2.0, -3.0, -4.0, -5.0, -6.0, *[-0.5] * max_tokens]
    assert told["top_logprobs"][:2] == [None, {"he": -0.5}]
    offsets = [0, *(start + i for i in (0, 2, 3, 3, 7))]
    assert told["text_offset"] == [*offsets, *[len(text)] * max_tokens]


async def test_log_probabilities_of_the_prompt_as_other_servers_tell_them():
    read = [logprob(5, -1.0, t2=-0.5, t5=-1.0), logprob(6, -3.0, t2=-0.5)]
    async with open_stage(chunk("x"), complete(prompt_logprobs=read)) as stage:
        (choice,) = (await chat(stage, prompt_logprobs=2))["choices"]
    he = {"logprob": -0.5, "rank": 1, "decoded_token": "he"}
    assert choice["prompt_logprobs"] == [
        None,
        {"2": he, "5": {"logprob": -1.0, "rank": 2, "decoded_token": " you"}},
        {"2": he, "6": {"logprob": -3.0, "rank": None, "decoded_token": "!"}},
    ]


async def test_the_only_model_needs_no_name():
    async with open_stage(chunk("x"), complete()) as stage:
        assert (await chat(stage, model=None))["model"] == "only"


async def test_models():
    async with open_stage() as stage, httpx2.AsyncClient(base_url=stage.url) as http:
        listed = (await http.get("/v1/models")).json()
        one = (await http.get("/v1/models/org/b")).json()
        none = await http.get("/v1/models/gone")
    about = {"object": "model", "created": 12, "owned_by": "outrider", "max_model_len": 64}
    assert listed == {
        "object": "list",
        "data": [{"id": "a", **about}, {"id": "org/b", **about}],
    }
    assert one == {"id": "org/b", **about}
    assert none.status_code == 404
    assert none.json()["error"]["code"] == "model_not_found"


ERRORS = [
    (InvalidField("sampling_params.logprobs", "no"), 400, "top_logprobs", "invalid_value", None),
    (InvalidField("chat", "the template refuses"), 400, "messages", "invalid_value", None),
    (NotFound("model: m is not served"), 404, "model", "model_not_found", None),
    (IdentityMismatch("other weights"), 400, None, None, None),
    (ResourceExhausted("the queue is full"), 429, None, "rate_limit_exceeded", "1"),
    (Unavailable("no verifier", retry_after_s=7.0), 503, None, "service_unavailable", "7"),
    (RuntimeError("a bug"), 500, None, None, None),
]


@pytest.mark.parametrize(("error", "status", "param", "code", "retry"), ERRORS)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_that_fails_before_its_first_token(error, status, param, code, retry, stream):
    async with open_stage(error) as stage:
        body = {"messages": HELLO, "logprobs": True, "top_logprobs": 1, "stream": stream}
        answer = await post(stage, "chat/completions", body)
    assert answer.status_code == status
    told = answer.json()["error"]
    assert (told["param"], told["code"]) == (param, code)
    assert answer.headers.get("retry-after") == retry
    type_ = {429: "rate_limit_error", 500: "server_error", 503: "server_error"}
    assert told["type"] == type_.get(status, "invalid_request_error")
    assert ("bug" in told["message"]) is False


async def test_a_stream_that_fails_says_so_and_is_not_done():
    async with open_stage(chunk("h"), Unavailable("the verifier is lost")) as stage:
        *texts, last = await events(stage, "chat/completions", messages=HELLO)
        client = openai_client(stage.url)
        stream = await client.chat.completions.create(model="m", messages=HELLO, stream=True)
        with pytest.raises(openai.APIError, match="the verifier is lost"):
            [event async for event in stream]
        answer = await post(stage, "chat/completions", {"messages": HELLO})
    assert len(texts) == 2
    assert last["error"]["code"] == "service_unavailable"
    assert answer.status_code == 503  # not half an answer


async def test_a_request_that_takes_too_long():
    async with open_stage(asyncio.Event(), timeout_s=0.1) as stage:
        answer = await post(stage, "completions", {"prompt": "he"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (504, "timeout")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("begun", [False, True])
async def test_a_client_that_leaves_ends_its_call(stream: bool, begun: bool):
    never = asyncio.Event()
    async with open_stage(*([chunk("h")] if begun else []), never) as stage:
        body = {"messages": HELLO, "stream": stream}
        asking = asyncio.create_task(post(stage, "chat/completions", body))
        await asyncio.wait_for(stage.orchestrator.was_asked.wait(), 20)
        asking.cancel()
        await asyncio.wait_for(stage.orchestrator.was_cancelled.wait(), 20)


async def test_a_client_that_left_before_the_stream_began_ends_its_call():
    closed = asyncio.Event()

    async def deltas() -> AsyncGenerator[Any, None]:
        try:
            yield None
            await asyncio.Event().wait()
        finally:
            closed.set()

    async def events() -> AsyncGenerator[str, None]:
        yield "never asked for"

    async def gone() -> dict[str, str]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        await asyncio.sleep(30)

    source = deltas()
    await anext(source)
    await EventStream(source, events())({"type": "http", "asgi": {}}, gone, send)
    assert closed.is_set()


async def test_a_prompt_of_several_that_fails_ends_the_others():
    async with open_stage() as stage:
        stage.orchestrator.hangs_at = "b"
        stage.orchestrator.script = [chunk("h"), stage.orchestrator.hung, Unavailable("gone")]
        answer = await post(stage, "completions", {"prompt": ["a", "b"]})
        await asyncio.wait_for(stage.orchestrator.was_cancelled.wait(), 20)
    assert answer.status_code == 503


async def test_an_error_says_which_of_several_prompts_it_is_about():
    async with open_stage() as stage:
        stage.orchestrator.hangs_at = "a"
        stage.orchestrator.script = [stage.orchestrator.hung, InvalidField("text", "too long")]
        several = await post(stage, "completions", {"prompt": ["a", "b"]})
        single = await post(stage, "completions", {"prompt": "b"})
    assert several.json()["error"]["param"] == "prompt[1]"
    assert several.json()["error"]["message"] == "prompt[1]: too long"
    assert single.json()["error"]["param"] == "prompt"


async def test_a_request_keeps_the_id_that_it_came_with():
    async with open_stage(chunk("h"), complete()) as stage:
        body = {"messages": HELLO}
        mine = await post(stage, "chat/completions", body, **{"x-request-id": "my own"})
        new = await post(stage, "chat/completions", body)
        bad = await post(stage, "chat/completions", body, **{"x-request-id": "x" * 129})
        none = await post(stage, "nothing", body)
    assert mine.headers["x-request-id"] == "my own"
    assert mine.json()["id"] == "chatcmpl-my own"
    assert stage.orchestrator.request_ids == ["my own", new.headers["x-request-id"]]
    assert (bad.status_code, bad.json()["error"]["param"]) == (400, "x-request-id")
    assert len({new.headers["x-request-id"], bad.headers["x-request-id"]}) == 2
    assert (none.status_code, bool(none.headers["x-request-id"])) == (404, True)


async def test_named_headers_go_on_to_the_orchestrator():
    async with open_stage(chunk("h"), complete(), forwarded=["x-tenant", "x-other"]) as stage:
        headers = {"x-tenant": "acme", "x-secret": "s"}
        await post(stage, "chat/completions", {"messages": HELLO}, **headers)
        bad = await post(stage, "completions", {"prompt": "a"}, **{"x-tenant": b"\xe9"})
    (sent,) = stage.orchestrator.metadata
    assert (sent["x-tenant"], "x-other" in sent, "x-secret" in sent) == ("acme", False, False)
    assert (bad.status_code, bad.json()["error"]["param"]) == (400, "x-tenant")


async def test_a_body_that_cannot_be_read():
    async with open_stage() as stage, httpx2.AsyncClient(base_url=stage.url) as http:
        broken = await http.post("/v1/completions", content=b'{"prompt": ')
        endless = await http.post("/v1/completions", content=b" " * (2**24 + 1))
        wrong = await http.get("/v1/completions")
    assert (broken.status_code, broken.json()["error"]["code"]) == (400, "invalid_json")
    assert endless.status_code == 413
    assert wrong.status_code == 405
    assert "GET /v1/completions" in wrong.json()["error"]["message"]
