"""Outputs end exactly where max_tokens or the context ends, whatever was drafted beyond."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
import pytest_asyncio

from drafter_svc.settings import DrafterSettings
from outrider.client import generate_request
from outrider.sampling import SamplingParams
from outrider.v1 import generation_pb2 as pb
from tests.integration.stage import Stage, assert_parity, open_stage, together
from verifier_svc.settings import VerifierSettings

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

CONTEXT = 64
PROMPT = [11, 12, 13, 11, 12, 13, 11, 12]  # lookup has something to copy from the start
PARAMS = SamplingParams(temperature=0.0, ignore_eos=True)
LENGTHS = range(1, 9)  # K


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(toy: Path) -> AsyncIterator[Stage]:
    wide = VerifierSettings(model=str(toy), name="wide", dtype="float32", num_threads=1)
    narrow = wide.model_copy(update={"name": "narrow", "max_context_length": CONTEXT})
    self_draft = DrafterSettings(model=str(toy), dtype="float32", num_threads=1)
    async with open_stage([wide, narrow], draft_model=self_draft) as opened:
        await opened.of("wide").plain(PROMPT, replace(PARAMS, max_tokens=64))
        yield opened.of("wide")


@pytest.mark.parametrize("drafter", ["oracle", "ngram", "model"])
async def test_no_draft_length_yields_more_than_max_tokens(stage: Stage, drafter: str):
    """Case 17: max_tokens 1 to 10 with every draft length."""
    cells = [(limit, length) for limit in range(1, 11) for length in LENGTHS]
    whole = await stage.plain(PROMPT, replace(PARAMS, max_tokens=10))
    outputs = await together(
        *(
            stage.speculated(
                PROMPT,
                replace(PARAMS, max_tokens=limit),
                drafter=drafter,
                num_draft_tokens=length,
            )
            for limit, length in cells
        )
    )
    for (limit, length), output in zip(cells, outputs, strict=True):
        about = (limit, length)
        assert output.token_ids == whole.token_ids[:limit], about
        assert sum(len(chunk.token_ids) for chunk in output.chunks) == limit, about
        assert output.complete.finish_reason == pb.FINISH_REASON_LENGTH, about
        assert output.complete.completion_tokens == limit, about
        assert output.complete.prompt_tokens == len(PROMPT), about
        # Nothing is drafted that could not be delivered.
        assert output.complete.receipt.num_draft_tokens <= max(limit - 2, 0) * length, about
        if drafter != "ngram":
            assert output.complete.receipt.draft_acceptance_rate in (0.0, 1.0), about


async def test_max_tokens_of_zero_is_refused(stage: Stage):
    """Case 17: the one documented outcome."""
    request = generate_request(PROMPT, model="wide", sources=["oracle"])
    request.sampling_params.max_tokens = 0
    with pytest.raises(grpc.aio.AioRpcError, match=r"sampling_params\.max_tokens") as raised:
        await stage.client.generate(request)
    assert raised.value.code() is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize("drafter", ["oracle", "model"])
async def test_the_context_ends_a_sequence_and_drafts_get_shorter_before(
    stage: Stage, drafter: str
):
    """Case 19: prompts around a context of 64, with a neighbour that also runs into its end."""
    narrow = stage.of("narrow")
    prompts = [[(7 * at + size) % 500 for at in range(size)] for size in range(58, 73)]
    fitting = [prompt for prompt in prompts if len(prompt) < CONTEXT]
    plain = await together(*(narrow.plain(prompt, PARAMS) for prompt in fitting))
    neighbour = await narrow.plain(PROMPT, PARAMS)
    assert len(neighbour.token_ids) == CONTEXT - len(PROMPT)

    beside = asyncio.create_task(narrow.speculated(PROMPT, PARAMS, drafter=drafter))
    outputs = await asyncio.gather(
        *(narrow.speculated(prompt, PARAMS, drafter=drafter) for prompt in prompts),
        return_exceptions=True,
    )
    assert_parity(await beside, neighbour)
    for prompt, output in zip(prompts, outputs, strict=True):
        if len(prompt) >= CONTEXT:
            assert isinstance(output, grpc.aio.AioRpcError)
            assert output.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert str(CONTEXT) in (output.details() or "")
            continue
        assert not isinstance(output, BaseException)
        room = CONTEXT - len(prompt)
        assert_parity(output, plain[len(prompt) - 58], len(prompt))
        assert len(output.token_ids) == room
        assert output.complete.finish_reason == pb.FINISH_REASON_LENGTH
        # The prefill gives one token, the last token is the target's own, between them the draft.
        assert output.complete.receipt.num_draft_tokens == max(room - 2, 0)
        assert output.complete.receipt.num_accepted_draft_tokens == max(room - 2, 0)
    assert_parity(await narrow.plain(PROMPT, PARAMS), neighbour)


async def test_the_stated_longest_prompt_is_the_longest_that_is_admitted(stage: Stage):
    """Case 19: what GetModelInfo promises holds to the token."""
    info = await stage.client.stub.GetModelInfo(pb.GetModelInfoRequest(model="narrow"))
    assert info.max_req_input_len == CONTEXT - 1
    output = await stage.of("narrow").speculated(
        [1] * info.max_req_input_len, PARAMS, drafter="alt"
    )
    assert len(output.token_ids) == 1
