"""An odd request is refused by name or answered, and nobody else notices."""

import asyncio
import math
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
import pytest_asyncio

from outrider.client import generate_request
from outrider.sampling import SamplingParams
from outrider.v1 import generation_pb2 as pb
from tests.integration.stage import ANSWER_S, Stage, assert_parity, open_stage
from verifier_svc.settings import VerifierSettings

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

VOCAB_SIZE = 512
PROMPT = [21, 22, 23]
RUNNING = SamplingParams(temperature=0.0, max_tokens=16, ignore_eos=True)
PARAMS = SamplingParams(temperature=0.8, max_tokens=6, seed=5, ignore_eos=True)

Odd = Callable[[pb.GenerateRequest], None]


def sampling(**fields: object) -> Odd:
    """Set fields that SamplingParams itself would refuse."""

    def change(request: pb.GenerateRequest) -> None:
        for name, value in fields.items():
            setattr(request.sampling_params, name, value)

    return change


def ids(*token_ids: int) -> Odd:
    """Send these ids as the prompt."""

    def change(request: pb.GenerateRequest) -> None:
        request.tokenized.CopyFrom(pb.TokenizedInput(input_ids=token_ids))

    return change


def speculation(**fields: object) -> Odd:
    """Ask for odd drafts."""

    def change(request: pb.GenerateRequest) -> None:
        request.speculation.CopyFrom(pb.SpeculationOptions(**fields))

    return change


def chat(*, extra_json: str = "", **fields: object) -> Odd:
    """Send a conversation of one message."""
    said = pb.ChatMessage(role="user", content="hello", extra_json=extra_json)
    return whole(chat=pb.ChatInput(messages=[said], **fields))


def whole(**fields: object) -> Odd:
    """Replace fields of the request."""

    def change(request: pb.GenerateRequest) -> None:
        request.MergeFrom(pb.GenerateRequest(**fields))

    return change


def stops(num: int, text: str = "never") -> Odd:
    """Name this many stop strings."""
    return lambda request: request.sampling_params.stop.extend([text] * num)


def many_stop_ids(request: pb.GenerateRequest) -> None:
    request.sampling_params.stop_token_ids.extend(range(65))


def stop_id_beyond(request: pb.GenerateRequest) -> None:
    request.sampling_params.stop_token_ids.append(VOCAB_SIZE)


def no_input(request: pb.GenerateRequest) -> None:
    request.ClearField("tokenized")


def bias(request: pb.GenerateRequest) -> None:
    request.sampling_params.logit_bias[3] = math.nan


REFUSED: dict[str, tuple[Odd, str]] = {
    "empty text": (whole(text=""), "input"),
    "a source that nobody has": (
        speculation(sources=["nobody"]),
        r"speculation\.sources: nobody",
    ),
    "empty id list": (ids(), "input"),
    "no input": (no_input, "input"),
    "no messages": (whole(chat=pb.ChatInput()), "messages"),
    "id -1": (ids(5, 2**32 - 1), r"tokenized\.input_ids\[1\]"),
    "id at vocabulary size": (ids(VOCAB_SIZE), r"tokenized\.input_ids\[0\]"),
    "max_tokens 0": (sampling(max_tokens=0), "max_tokens"),
    "max_tokens -1": (sampling(max_tokens=2**32 - 1), "max_tokens"),
    "min_tokens above max_tokens": (sampling(min_tokens=7), "min_tokens"),
    "repetition_penalty 0": (sampling(repetition_penalty=0.0), "repetition_penalty"),
    "repetition_penalty NaN": (sampling(repetition_penalty=math.nan), "repetition_penalty"),
    "presence_penalty NaN": (sampling(presence_penalty=math.nan), "presence_penalty"),
    "frequency_penalty 2.1": (sampling(frequency_penalty=2.1), "frequency_penalty"),
    "top_p 0": (sampling(top_p=0.0), "top_p"),
    "top_p 1.5": (sampling(top_p=1.5), "top_p"),
    "top_p NaN": (sampling(top_p=math.nan), "top_p"),
    "min_p NaN": (sampling(min_p=math.nan), "min_p"),
    "min_p -0.1": (sampling(min_p=-0.1), "min_p"),
    "top_k -2": (sampling(top_k=-2), "top_k"),
    "temperature NaN": (sampling(temperature=math.nan), "temperature"),
    "temperature -1": (sampling(temperature=-1.0), "temperature"),
    "n 0": (sampling(n=0), r"\.n: 0 is outside \[1, 16\]"),
    "n 17": (sampling(n=17), r"\.n: 17 is outside \[1, 16\]"),
    "a prompt cut to nothing": (sampling(truncate_prompt_tokens=0), "truncate_prompt_tokens"),
    "65 logprobs": (sampling(logprobs=65), "logprobs"),
    "logit_bias NaN": (bias, "logit_bias"),
    "a constraint, and nothing that ends it": (sampling(regex="[0-9]+"), "stop_token_ids: needed"),
    "1000 stop strings": (stops(1000), r"sampling_params\.stop"),
    "empty stop string": (stops(1, ""), r"sampling_params\.stop\[0\]"),
    "endless stop string": (stops(1, "x" * 257), r"sampling_params\.stop\[0\]"),
    "65 stop ids": (many_stop_ids, "stop_token_ids"),
    "stop id beyond vocabulary": (stop_id_beyond, "stop_token_ids"),
    "drafts of no token": (speculation(num_draft_tokens=0), "num_draft_tokens"),
    "drafts of a thousand": (speculation(num_draft_tokens=1000), "num_draft_tokens"),
    "at least no draft token": (speculation(min_draft_tokens=0), "min_draft_tokens"),
    "at most a thousand": (
        speculation(max_draft_tokens=1000),
        r"max_draft_tokens: 1000 is outside",
    ),
    "a range that is none": (
        speculation(min_draft_tokens=3, max_draft_tokens=2),
        r"min_draft_tokens: 3 is above max_draft_tokens, 2",
    ),
    "a range and a number": (
        speculation(num_draft_tokens=3, max_draft_tokens=3),
        "max_draft_tokens: excludes num_draft_tokens",
    ),
    "a range but target only": (speculation(target_only=True, max_draft_tokens=3), "target_only"),
    "tools that are no JSON": (chat(tools_json="{"), r"chat\.tools_json: is no JSON"),
    "tools for a template without": (chat(tools_json="[]"), r"chat\.tools_json: .*reads no tools"),
    "variables that are a list": (
        chat(template_kwargs_json="[]"),
        r"chat\.template_kwargs_json: is no JSON object",
    ),
    "a variable that nobody reads": (
        chat(template_kwargs_json='{"x": 1}'),
        r"chat\.template_kwargs_json\.x: .*no such variable",
    ),
    "a message of half a JSON": (chat(extra_json="["), r"chat\.messages\[0\]\.extra_json"),
    "the user's message continued": (
        chat(continue_final_message=True),
        r"chat\.continue_final_message: the last message is of 'user'",
    ),
    "sources but target only": (
        speculation(target_only=True, sources=["alt"]),
        "target_only",
    ),
    "an adapter": (whole(lora_id="x"), "lora_id"),
    "a priority out of range": (whole(priority=101), "priority"),
    "endless salt": (whole(cache_salt="x" * 257), "cache_salt"),
}
ANSWERED: dict[str, Odd] = {
    "one token, shorter than any n-gram": ids(30),
    "lookup over one token": lambda r: (ids(30)(r), speculation(sources=["ngram"])(r)),
    "largest seed": sampling(seed=2**63 - 1),
    "smallest seed": sampling(seed=-(2**63)),
    "top_k 1": sampling(top_k=1),
    "top_k of everything": sampling(top_k=2**31 - 1),
    "tiny top_p": sampling(top_p=1e-30),
    "min_p 1": sampling(min_p=1.0),
    "min_tokens equal to max_tokens": sampling(min_tokens=6, ignore_eos=False),
    "a prompt cut to one token": sampling(truncate_prompt_tokens=1),
    "a long prompt cut to what fits": lambda r: (
        ids(*range(20, 120))(r),
        sampling(truncate_prompt_tokens=40)(r),
    ),
    "as many choices as there may be": sampling(n=16),
    "drafts of one length by range": speculation(
        sources=["alt"], min_draft_tokens=2, max_draft_tokens=2
    ),
    "max_tokens beyond the context": sampling(max_tokens=2**31 - 1, temperature=0.0),
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(toy: Path) -> AsyncIterator[Stage]:
    target = VerifierSettings(model=str(toy), dtype="float32", num_threads=1, max_context_length=48)
    async with open_stage([target]) as opened:
        await opened.plain(PROMPT, replace(RUNNING, max_tokens=40))
        yield opened


async def beside_a_stream(stage: Stage, request: pb.GenerateRequest):
    """Send the request while another one streams; returns its output or its error.

    The stream and a plain request afterwards give what they always give.
    """
    expected = await stage.plain(PROMPT, RUNNING)
    drafted = generate_request(PROMPT, RUNNING, sources=["alt"], num_draft_tokens=2)
    stream = stage.client.stream(drafted, timeout_s=ANSWER_S)
    streamed = [await anext(stream)]
    (outcome,) = await asyncio.gather(
        stage.client.generate(request, timeout_s=ANSWER_S), return_exceptions=True
    )
    streamed += [response async for response in stream]
    complete = streamed.pop().complete
    assert list(complete.output_ids) == expected.token_ids
    assert [i for each in streamed for i in each.chunk.token_ids] == expected.token_ids
    assert_parity(await stage.plain(PROMPT, RUNNING), expected)
    return outcome


@pytest.mark.parametrize("odd", REFUSED)
async def test_a_request_that_makes_no_sense_is_refused_by_name(stage: Stage, odd: str):
    """Case 47: INVALID_ARGUMENT with the field, before anything shared is touched."""
    change, field = REFUSED[odd]
    request = generate_request(PROMPT, PARAMS)
    change(request)
    error = await beside_a_stream(stage, request)
    assert isinstance(error, grpc.aio.AioRpcError), odd
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    with pytest.raises(grpc.aio.AioRpcError, match=field):
        raise error


@pytest.mark.parametrize("odd", ANSWERED)
async def test_an_extreme_request_is_answered_like_plain_decoding(stage: Stage, odd: str):
    """Case 47: what is legal at the edge gives an answer, the same with drafts as without."""
    request = generate_request(PROMPT, PARAMS)
    ANSWERED[odd](request)
    plain = pb.GenerateRequest()
    plain.CopyFrom(request)
    plain.speculation.CopyFrom(pb.SpeculationOptions(target_only=True))
    expected = await stage.client.generate(plain, timeout_s=ANSWER_S)
    output = await beside_a_stream(stage, request)
    assert not isinstance(output, BaseException), output
    assert_parity(output, expected)
    assert len(output.token_ids) >= 1


async def test_text_that_is_no_utf8_ends_its_own_call_only(stage: Stage):
    """Case 47: bytes that no client library of ours would send."""
    expected = await stage.plain(PROMPT, RUNNING)
    request = (
        generate_request("QQQQ", PARAMS).SerializeToString().replace(b"QQQQ", b"\xff\xfe\xfd\xff")
    )
    async with grpc.aio.insecure_channel(stage.cluster.address) as channel:
        call = channel.unary_stream(
            "/outrider.v1.GenerationService/Generate",
            request_serializer=bytes,
            response_deserializer=pb.GenerateResponse.FromString,
        )
        with pytest.raises(grpc.aio.AioRpcError):
            async for _ in call(request, timeout=ANSWER_S):
                pass
    assert_parity(await stage.plain(PROMPT, RUNNING), expected)
