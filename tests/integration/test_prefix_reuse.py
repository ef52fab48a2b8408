"""Drafts on top of reused prefixes and scattered blocks change nothing."""

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from drafter_svc.settings import DrafterSettings
from outrider.sampling import SamplingParams
from outrider.serving.channel import open_channel
from outrider.v1 import worker_pb2, worker_pb2_grpc
from tests.integration.stage import Stage, assert_parity, open_stage, together
from verifier_svc.settings import VerifierSettings

pytestmark = [pytest.mark.integration, pytest.mark.asyncio(loop_scope="module")]

BLOCK = 16
POOL_TOKENS = 1024  # 64 blocks: enough for what runs, too little to keep what ran
PARAMS = SamplingParams(temperature=0.0, max_tokens=12, ignore_eos=True)
K = 5


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stage(toy: Path, other: Path) -> AsyncIterator[Stage]:
    """Two equal targets: "small" shares and evicts, "cold" never reuses anything."""
    small = VerifierSettings(
        model=str(toy),
        name="small",
        dtype="float32",
        num_threads=1,
        kv_cache_tokens=POOL_TOKENS,
        max_context_length=256,
    )
    # Verifiers that are equal in all but their names stand in for each other; these must not.
    different = {"name": "cold", "kv_cache_tokens": 65_536, "max_context_length": 255}
    cold = small.model_copy(update=different)
    draft_model = DrafterSettings(
        model=str(other), dtype="float32", num_threads=1, kv_cache_tokens=POOL_TOKENS
    )
    async with open_stage([small, cold], draft_model=draft_model) as opened:
        yield opened.of("small")


async def cold(stage: Stage, prompts: list[list[int]]):
    """The outputs of a server that sees every prompt for the first time."""
    outputs = await together(
        *(
            stage.of("cold").plain(prompt, PARAMS, salt=f"salt {random.random()}")
            for prompt in prompts
        )
    )
    assert all(output.complete.cached_tokens == 0 for output in outputs)
    return outputs


def random_ids(rng: random.Random, num: int) -> list[int]:
    return [rng.randrange(500) for _ in range(num)]


async def scatter(stage: Stage, rng: random.Random) -> list[asyncio.Task]:
    """Take blocks for twenty requests and give every second one's back; returns the others."""
    tasks: list[asyncio.Task] = []
    for at in range(20):
        prompt = random_ids(rng, rng.randrange(10, 30))
        params = SamplingParams(temperature=0.0, max_tokens=1 if at % 2 else 40, ignore_eos=True)
        tasks.append(asyncio.create_task(stage.plain(prompt, params)))
    await asyncio.gather(*tasks[1::2])
    return tasks[::2]


async def blocks_in_use(stage: Stage, at: int) -> float:
    """The share of KV blocks that open leases hold at a verifier."""
    async with open_channel(stage.cluster.verifiers[at]) as channel:
        stub = worker_pb2_grpc.WorkerServiceStub(channel)
        answer = await stub.GetLoads(worker_pb2.GetLoadsRequest(), timeout=10)
    return answer.load.token_usage


@pytest.mark.parametrize("drafter", ["alt", "model"])
async def test_prefixes_in_scattered_blocks_serve_speculation(stage: Stage, drafter: str):
    """Case 33: P+A, P+B, P+A with P of three full blocks and a part of one, in a broken-up pool."""
    rng = random.Random(33 + len(drafter))
    prefix = random_ids(rng, 3 * BLOCK + 7)
    a, b = [*prefix, *random_ids(rng, 9)], [*prefix, *random_ids(rng, 12)]
    expected_a, expected_b = await cold(stage, [a, b])
    others = await scatter(stage, rng)
    cached = []
    for prompt, expected in ((a, expected_a), (b, expected_b), (a, expected_a)):
        output = await stage.speculated(
            prompt, PARAMS, drafter=drafter, num_draft_tokens=K, salt=drafter
        )
        assert_parity(output, expected)
        assert output.complete.receipt.num_draft_tokens > 0
        assert output.complete.cached_tokens <= output.complete.prompt_tokens
        cached.append(output.complete.cached_tokens)
    # B shares the three full blocks; A again also what A itself filled, but its last block.
    assert cached == [0, 3 * BLOCK, 3 * BLOCK + BLOCK * ((len(a) - 1) // BLOCK - 3)]
    await asyncio.gather(*others)


async def test_the_same_block_behind_another_prefix_is_not_reused(stage: Stage):
    """Case 33: a block's KV depends on all ids before it, not on its own alone."""
    rng = random.Random(7)
    x, y, shared = (random_ids(rng, BLOCK) for _ in range(3))
    tail = random_ids(rng, 5)
    prompts = [[*x, *shared, *tail], [*y, *tail], [*y, *shared, *tail]]
    expected = await cold(stage, prompts)
    cached = []
    for prompt, plain in zip(prompts, expected, strict=True):
        output = await stage.speculated(
            prompt, PARAMS, drafter="alt", num_draft_tokens=K, salt="same block"
        )
        assert_parity(output, plain)
        cached.append(output.complete.cached_tokens)
    assert cached == [0, 0, BLOCK]


async def test_a_pool_under_pressure_gives_every_request_its_own_answer(stage: Stage):
    """Case 33: 200 requests with common prefixes, more than the pool holds, each with parity."""
    rng = random.Random(200)
    stems = [random_ids(rng, rng.choice((15, 16, 17, 47, 48, 60))) for _ in range(6)]
    prompts = []
    for _ in range(200):
        stem = rng.choice(stems)
        prompts.append([*stem[: rng.randrange(1, len(stem) + 1)], *random_ids(rng, 3)])
    params = SamplingParams(temperature=0.0, max_tokens=6, ignore_eos=True)
    distinct = {tuple(prompt): prompt for prompt in prompts}
    plain = await together(
        *(
            stage.of("cold").plain(prompt, params, salt=f"own {at}")
            for at, prompt in enumerate(distinct.values())
        )
    )
    expected = dict(zip(distinct, plain, strict=True))
    drafters = [rng.choice(("alt", "oracle", "model", "ngram")) for _ in prompts]
    outputs = await together(
        *(
            stage.speculated(prompt, params, drafter=drafter, num_draft_tokens=rng.randrange(1, 9))
            for prompt, drafter in zip(prompts, drafters, strict=True)
        )
    )
    for prompt, drafter, output in zip(prompts, drafters, outputs, strict=True):
        assert_parity(output, expected[tuple(prompt)], (drafter, prompt))
    assert sum(output.complete.cached_tokens for output in outputs) > 0
    for _ in range(400):  # the last leases close a moment after their requests
        if await blocks_in_use(stage, 0) == 0:
            break
        await asyncio.sleep(0.05)
    else:
        raise AssertionError("blocks of finished requests are still in use")
