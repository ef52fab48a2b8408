"""Three services over gRPC emit exactly the target's law, whatever the drafter's table says."""

import asyncio
import logging
import os
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest
import structlog
import torch

from drafter_svc.model import ModelLease
from drafter_svc.source import Block
from outrider import coupling
from outrider.client import Client, generate_request
from outrider.draft import NO_DRAFT
from outrider.sampling import AcceptanceRule, SamplingParams
from outrider.v1 import generation_pb2 as pb
from tests.cluster import cluster
from tests.statistical.law import ALPHA, Ids, TableLaw, sequence_p
from tests.table_model import VOCAB_SIZE, table_drafter, table_verifier

pytestmark = [pytest.mark.statistical, pytest.mark.integration, pytest.mark.timeout(900)]

PROMPT = (4, 1)
NUM_TOKENS = 3
CONCURRENCY = 256  # per process
GATHER_S = 0.02  # passes of many rows cost little more than of one
TARGET = TableLaw.random(VOCAB_SIZE, seed=21, scale=1.0)
DRAFT = TableLaw(TARGET.logits + TableLaw.random(VOCAB_SIZE, seed=22, scale=0.7).logits)


@pytest.fixture(autouse=True)
def only_warnings() -> Iterator[None]:
    before, threads = structlog.get_config(), torch.get_num_threads()
    be_quick()
    yield
    torch.set_num_threads(threads)
    structlog.configure(**before)


def be_quick() -> None:
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
    torch.set_num_threads(1)  # rows are short: threads only wait for one another


async def sample(
    *, num_draws: int, first_seed: int, rule: AcceptanceRule, max_outcomes: int = 1
) -> tuple[Ids, Counter]:
    """Return the first tokens of every seed, each from its own request with drafts of two."""
    sequences: Ids = np.zeros((num_draws, NUM_TOKENS), dtype=np.int64)
    counts: Counter = Counter()
    seeds = iter(range(num_draws))

    async def ask(client: Client) -> None:
        for i in seeds:
            # One token more than is looked at leaves room for both draft tokens, a few more for
            # drafting ahead of the cycles that are looked at.
            num_tokens = NUM_TOKENS + (1 if max_outcomes == 1 else 4)
            params = SamplingParams(temperature=1.0, max_tokens=num_tokens, seed=first_seed + i)
            output = await client.generate(
                generate_request(
                    PROMPT,
                    params,
                    sources=("model",),
                    num_draft_tokens=2,
                    acceptance_rule=rule,
                )
            )
            sequences[i] = output.token_ids[:NUM_TOKENS]
            counts.update(origin for chunk in output.chunks for origin in chunk.origins)
            counts["heals"] += output.complete.receipt.num_ledger_heals
            counts["failovers"] += output.complete.receipt.num_failovers
            for each in output.complete.receipt.draft_blocks:
                counts[each.reason] += each.count

    async with cluster(
        verifiers=[table_verifier(TARGET, gather_s=GATHER_S)],
        drafters=[table_drafter(DRAFT, gather_s=GATHER_S)],
        draft_wait_ms=10_000,
        max_outcomes=max_outcomes,
    ) as services:
        # Answers for several outcomes are that many messages.
        num_streams = CONCURRENCY // max_outcomes
        await asyncio.gather(*(ask(services.client) for _ in range(num_streams)))
    return sequences, counts


def sample_alone(num_draws: int, first_seed: int, rule: AcceptanceRule) -> tuple[Ids, Counter]:
    """Sample in a process of its own."""
    be_quick()
    return asyncio.run(sample(num_draws=num_draws, first_seed=first_seed, rule=rule))


def sample_on_all_cores(
    *, num_draws: int, first_seed: int, rule: AcceptanceRule
) -> tuple[Ids, Counter]:
    """Share the seeds out: a cluster for every core, all of it Python on one thread."""
    shares = np.array_split(np.arange(num_draws), os.cpu_count() or 1)
    # gRPC's threads do not survive a fork.
    with ProcessPoolExecutor(len(shares), mp_context=get_context("spawn")) as processes:
        sizes = [len(share) for share in shares]
        seeds = [first_seed + int(share[0]) for share in shares]
        results = list(processes.map(sample_alone, sizes, seeds, [rule] * len(shares)))
    return np.concatenate([ids for ids, _ in results]), sum((c for _, c in results), Counter())


# 20,000 take minutes a rule (`make law-soak`); both laws are tested ten times as often through the
# core as well, so that fewer requests go over gRPC unless asked for.
NUM_REQUESTS = int(os.environ.get("OUTRIDER_LAW_REQUESTS", "3000"))


@pytest.mark.parametrize("rule", [AcceptanceRule.COUPLED, AcceptanceRule.BLOCK])
async def test_requests_follow_the_law(rule: AcceptanceRule):
    # seeds 10**12.., draws as above, alpha 1e-6
    sequences, counts = await asyncio.to_thread(
        sample_on_all_cores, num_draws=NUM_REQUESTS, first_seed=10**12, rule=rule
    )
    assert len(sequences) == NUM_REQUESTS
    for origin in (
        pb.TOKEN_ORIGIN_ACCEPTED,
        pb.TOKEN_ORIGIN_RECOVERED,
        pb.TOKEN_ORIGIN_BONUS,
        pb.TOKEN_ORIGIN_ONLY,
    ):
        assert counts[origin] > NUM_REQUESTS / 10, counts
    assert counts["failovers"] == 0
    assert counts["heals"] == 0
    assert sequence_p(TARGET, PROMPT, sequences) > ALPHA


@pytest.mark.parametrize("rule", [AcceptanceRule.COUPLED, AcceptanceRule.BLOCK])
async def test_drafting_ahead_for_several_outcomes_follows_the_law(rule: AcceptanceRule):
    # seeds 10**12.., draws 1,500, alpha 1e-6
    sequences, counts = await sample(num_draws=1_500, first_seed=10**12, rule=rule, max_outcomes=5)
    assert counts["hit"] > 1_000, counts
    assert counts[pb.TOKEN_ORIGIN_ACCEPTED] > 1_000, counts
    assert sequence_p(TARGET, PROMPT, sequences) > ALPHA


async def test_blocks_that_are_left_out_for_their_tokens_fail_the_law(monkeypatch):
    # seeds 10**12.., draws 1,500, alpha 1e-6
    draft_each = ModelLease.draft_each

    async def choosy(lease, wanted, foreseen):
        async for block in draft_each(lease, wanted, foreseen):
            if block.draft.token_ids[0] % 2:
                yield block

    # Asked again for the cycle the drafter would draw the same tokens.
    monkeypatch.setattr(ModelLease, "draft_each", choosy)
    monkeypatch.setattr(ModelLease, "draft", lambda lease, wanted: nothing())
    sequences, _ = await sample(
        num_draws=1_500, first_seed=10**12, rule=AcceptanceRule.BLOCK, max_outcomes=5
    )
    assert sequence_p(TARGET, PROMPT, sequences) < ALPHA


async def nothing() -> Block:
    return Block(path=(), draft=NO_DRAFT)


async def test_noise_that_serves_two_positions_fails_the_law(monkeypatch):
    # seeds 10**12.., draws 1,000, alpha 1e-6
    draw = coupling.draw
    monkeypatch.setattr(
        coupling,
        "draw",
        lambda rows, keys, positions: draw(rows, keys, [p // 2 for p in positions]),
    )
    sequences, _ = await sample(num_draws=1_000, first_seed=10**12, rule=AcceptanceRule.COUPLED)
    assert sequence_p(TARGET, PROMPT, sequences) < ALPHA
