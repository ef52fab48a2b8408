"""Several choices of one request: one reading of the prompt, a seed each, one end for all."""

import asyncio
import logging
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from pathlib import Path

import grpc
import pytest
import pytest_asyncio
import structlog

from drafter_svc.settings import DrafterSettings
from outrider.client import generate_request
from outrider.sampling import SamplingParams, choice_seed
from outrider.serving.channel import open_channel
from outrider.v1 import generation_pb2 as pb
from outrider.v1 import worker_pb2, worker_pb2_grpc
from tests.cluster import Cluster
from tests.integration.stage import ANSWER_S, Stage, assert_parity, open_stage
from verifier_svc.settings import VerifierSettings

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

BLOCK = 16
PROMPT = [5, 300, 17, 204]
HOT = SamplingParams(temperature=1.5, max_tokens=24, seed=42, ignore_eos=True)
FREED_S = 2.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(toy: Path, other: Path) -> AsyncIterator[Stage]:
    """Two equal verifiers, so that choices could go astray."""
    target = VerifierSettings(model=str(toy), dtype="float32", num_threads=1)
    draft_model = DrafterSettings(model=str(other), dtype="float32", num_threads=1)
    async with open_stage([target, target], draft_model=draft_model) as opened:
        yield opened


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def narrow(toy: Path) -> AsyncIterator[Stage]:
    """A slot, and four that may wait for it."""
    target = VerifierSettings(model=str(toy), dtype="float32", num_threads=1)
    async with open_stage([target], max_running=1, max_waiting=4) as opened:
        yield opened


async def num_leases(services: Cluster) -> list[int]:
    loads = []
    for address in (*services.verifiers, *services.drafters):
        async with open_channel(address) as channel:
            stub = worker_pb2_grpc.WorkerServiceStub(channel)
            loads.append((await stub.GetLoads(worker_pb2.GetLoadsRequest())).load)
    return [load.num_running_reqs for load in loads]


async def until_free(services: Cluster) -> None:
    request = pb.GenerationServiceGetLoadsRequest()
    async with asyncio.timeout(FREED_S):
        while any(await num_leases(services)):  # noqa: ASYNC110
            await asyncio.sleep(0.02)
        own = (await services.client.stub.GetLoads(request)).load
        assert (own.num_running_reqs, own.num_waiting_reqs) == (0, 0)


@pytest.mark.parametrize("drafter", ["oracle", "alt", "wrong", "ngram", "model"])
async def test_a_choice_is_what_its_seed_gives_alone(stage: Stage, drafter: str):
    """Whatever drafts; the request's own seed is that of the first choice."""
    params = replace(HOT, n=4)
    plain = await stage.plain(PROMPT, params)
    seeds = [choice.complete.receipt.seed for choice in plain.choices]
    assert seeds == [choice_seed(42, index) for index in range(4)]
    assert [choice.complete.index for choice in plain.choices] == [0, 1, 2, 3]
    drafted = await stage.speculated(PROMPT, params, drafter=drafter)
    for seed, one, other in zip(seeds, plain.choices, drafted.choices, strict=True):
        alone = await stage.plain(PROMPT, replace(HOT, seed=seed))
        assert_parity(one, alone, seed)
        assert_parity(other, alone, (seed, drafter))
        assert other.complete.receipt.seed == seed
    assert len({tuple(choice.token_ids) for choice in plain.choices}) == 4
    if drafter == "oracle":  # now it knows what every seed says
        again = await stage.speculated(PROMPT, params, drafter=drafter)
        for one, other in zip(plain.choices, again.choices, strict=True):
            assert_parity(other, one)
            assert other.complete.receipt.draft_acceptance_rate == 1.0


@pytest.mark.parametrize("seed", [7, -2, -1, 0, 2**63 - 1])
async def test_no_seed_gives_equal_copies(stage: Stage, seed: int):
    """Case 13: three different choices each, and the same three again."""
    params = replace(HOT, seed=seed, n=3)
    first, again = [await stage.plain(PROMPT, params) for _ in range(2)]
    told = [choice.token_ids for choice in first.choices]
    assert len({tuple(ids) for ids in told}) == 3
    assert [choice.token_ids for choice in again.choices] == told
    neighbour = await stage.plain(PROMPT, replace(params, seed=seed - 1 if seed > 0 else seed + 1))
    assert not {tuple(c.token_ids) for c in neighbour.choices} & {tuple(ids) for ids in told}


async def test_greedy_choices_are_equal(stage: Stage):
    params = SamplingParams(temperature=0.0, max_tokens=12, n=3)
    alone = await stage.plain(PROMPT, replace(params, n=1))
    for choice in (await stage.plain(PROMPT, params)).choices:
        assert_parity(choice, alone)


@pytest.mark.parametrize("length", [24, 100])
async def test_the_prompt_is_read_once(stage: Stage, length: int):
    """All choices but the first find the full blocks of the prompt, at the one verifier that has
    read it: also of a short prompt, for which verifiers are chosen by their load alone."""
    prompt = [(7 * i + length) % 500 for i in range(length)]
    output = await stage.plain(prompt, replace(HOT, n=8, max_tokens=4), salt=f"once {length}")
    cached = [choice.complete.cached_tokens for choice in output.choices]
    assert cached == [0, *[(length - 1) // BLOCK * BLOCK] * 7]
    assert {choice.complete.prompt_tokens for choice in output.choices} == {length}


async def test_each_choice_has_its_own_log_probabilities(stage: Stage):
    """The prompt's are told once."""
    output = await stage.speculated(
        PROMPT, replace(HOT, n=3, logprobs=2, prompt_logprobs=1), drafter="alt"
    )
    for index, choice in enumerate(output.choices):
        streamed = [each for chunk in choice.chunks for each in chunk.logprobs]
        assert streamed == list(choice.complete.logprobs)
        assert [each.token_id for each in streamed] == choice.token_ids
        assert len(choice.complete.prompt_logprobs) == (0 if index else len(PROMPT) - 1)


async def test_choices_end_where_each_of_them_ends(stage: Stage):
    """Stop strings and stop ids are looked for in every choice by itself."""
    free = await stage.plain(PROMPT, replace(HOT, n=4))
    stop_id = free.choices[2].token_ids[3]
    params = replace(HOT, n=4, stop_token_ids=(stop_id,), stop=(free.choices[1].text[4:7],))
    output = await stage.plain(PROMPT, params)
    for seed, choice in zip(
        [each.complete.receipt.seed for each in free.choices], output.choices, strict=True
    ):
        assert_parity(choice, await stage.plain(PROMPT, replace(params, n=1, seed=seed)))
    assert len({choice.complete.completion_tokens for choice in output.choices}) > 1


async def test_one_slot_is_enough_for_any_number_of_choices(narrow: Stage):
    """They take turns and never hold what another of them waits for."""
    params = replace(HOT, n=5)
    request = generate_request(PROMPT, params, sources=["ngram"])
    order: list[int] = []
    ids: defaultdict[int, list[int]] = defaultdict(list)
    most = 0
    async for response in narrow.client.stream(request, timeout_s=ANSWER_S):
        if response.WhichOneof("kind") == "chunk":
            ids[response.chunk.index] += response.chunk.token_ids
            order += [response.chunk.index] * (order[-1:] != [response.chunk.index])
            most = max(most, (await num_leases(narrow.cluster))[0])
        else:
            assert list(response.complete.output_ids) == ids[response.complete.index]
    assert order == [0, 1, 2, 3, 4]
    assert most == 1
    for index in range(5):
        alone = await narrow.plain(PROMPT, replace(HOT, seed=choice_seed(42, index)))
        assert ids[index] == alone.token_ids
    await until_free(narrow.cluster)


async def fails(stage: Stage, request: pb.GenerateRequest) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await stage.client.generate(request, timeout_s=ANSWER_S)
    return raised.value


async def test_a_request_gets_room_for_all_choices_or_is_refused_at_once(narrow: Stage):
    """Never for a part of them, and never later."""
    error = await fails(narrow, generate_request(PROMPT, replace(HOT, n=6)))
    assert error.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert (error.details() or "").startswith("sampling_params.n: 6 choices, at most 5")
    long = generate_request(PROMPT, replace(HOT, n=3, max_tokens=200))
    stream = narrow.client.stream(long, timeout_s=ANSWER_S)
    await anext(stream)
    error = await fails(narrow, generate_request(PROMPT, replace(HOT, n=3)))
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    small = asyncio.create_task(narrow.plain(PROMPT, replace(HOT, n=2)))
    told = [response async for response in stream]
    assert sum(each.WhichOneof("kind") == "complete" for each in told) == 3
    assert len((await small).choices) == 2
    await until_free(narrow.cluster)


@pytest.mark.parametrize("num_chunks", [0, 1, 9])
async def test_a_client_that_leaves_ends_all_choices(stage: Stage, num_chunks: int):
    request = generate_request(
        PROMPT, replace(HOT, n=6, max_tokens=400), sources=["model"], num_draft_tokens=3
    )
    call = stage.client.stub.Generate(request, timeout=ANSWER_S)
    for _ in range(num_chunks):
        await call.read()
    if not num_chunks:
        await asyncio.sleep(0.005)
    call.cancel()
    await until_free(stage.cluster)


async def test_a_deadline_ends_all_choices_with_its_status(stage: Stage):
    request = generate_request(PROMPT, replace(HOT, n=4, max_tokens=500))
    with pytest.raises(grpc.aio.AioRpcError) as raised:
        await stage.client.generate(request, timeout_s=0.2)
    assert raised.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await until_free(stage.cluster)


async def test_every_choice_is_logged_as_itself(
    stage: Stage, log_events: Sequence[dict[str, object]]
):
    """A line each, under the request's id; the log of the services is that of this process."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.INFO))
    request = generate_request(PROMPT, replace(HOT, n=3, max_tokens=5), target_only=True)
    output = await stage.client.generate(request, timeout_s=ANSWER_S, request_id="three")
    lines = [each for each in log_events if each["event"] == "request_finished"]
    assert sorted(each["index"] for each in lines) == [0, 1, 2]
    assert {each["request_id"] for each in lines} == {"three"}
    assert {each["num_output_tokens"] for each in lines} == {5}
    assert {choice.complete.receipt.request_id for choice in output.choices} == {"three"}
