"""13, 16 to 19: what rules drafts, draws and decisions in RATIO, on the wire of each worker."""

from collections.abc import Sequence

import grpc
import numpy as np
import pytest

from outrider import noise, wire
from outrider.sampling import SamplingParams, proposal_key
from outrider.v1 import common_pb2, drafter_pb2, verifier_pb2
from tests.conformance.conftest import Worker
from tests.conformance.wire import DraftStream, draft_stream, verify_stream

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.integration]

RATIO = common_pb2.MODE_RATIO
PROMPT = [10, 20, 30, 40]
SAMPLING = SamplingParams(temperature=0.8, top_k=40, max_tokens=64, seed=5)
KEY = proposal_key(5)
REJECTION = verifier_pb2.RATIO_RULE_REJECTION
BLOCK = verifier_pb2.RATIO_RULE_BLOCK


def redraw(distribution: common_pb2.TokenDistribution, node: int, position: int, cycle: int) -> int:
    """Draw a token from its counts as the contract says, with nothing of the project's but U."""
    ids = np.frombuffer(distribution.ids, dtype="<u4")
    counts = np.frombuffer(distribution.counts, dtype="<u2").astype(int) + 1
    uniform = float(noise.uniform(KEY, node, position, cycle, 1))
    at = 0
    for token_id, count in zip(ids.tolist(), counts.tolist(), strict=True):
        at += count
        if uniform * 65536 < at:
            return token_id
    raise AssertionError("counts do not sum to 65536")


async def drafted(
    stream: DraftStream, pending: Sequence[int] | None = None, *, cycle: int, num_tokens: int = 4
) -> drafter_pb2.DraftBlock:
    await stream.advance(PROMPT, pending=pending, for_cycle=cycle, num_tokens=num_tokens)
    response = await stream.read()
    assert response.WhichOneof("kind") == "block"
    return response.block


# --- drafter ----------------------------------------------------------------------------------


@pytest.mark.parametrize("cycle", [0, 1, 7, 2**40])
async def test_c16_c17_a_block_is_drawn_with_the_noise_of_its_one_cycle(
    drafter: Worker, cycle: int
) -> None:
    async with draft_stream(drafter.address, sampling=SAMPLING, mode=RATIO) as stream:
        block = await drafted(stream, cycle=cycle)
    assert block.for_cycle == cycle
    assert len(block.draft.token_ids) == len(block.draft.distributions) == 4
    for node, token_id in enumerate(block.draft.token_ids):
        drawn = redraw(block.draft.distributions[node], node, len(PROMPT) + node, cycle)
        assert token_id == drawn


async def test_c17_blocks_of_two_cycles_never_share_noise(drafter: Worker) -> None:
    async with draft_stream(drafter.address, sampling=SAMPLING, mode=RATIO) as stream:
        tokens = {tuple((await drafted(stream, cycle=c)).draft.token_ids) for c in range(8)}
        again = {tuple((await drafted(stream, cycle=c)).draft.token_ids) for c in range(8)}
    assert tokens == again
    assert len(tokens) >= 6, "the same text, drawn anew for every cycle"


async def test_c17_drafting_ahead_guesses_without_noise(drafter: Worker) -> None:
    async with draft_stream(drafter.address, sampling=SAMPLING, mode=RATIO) as stream:
        blocks = [await drafted(stream, pending=[7, 8], cycle=cycle) for cycle in (3, 4)]
    assert blocks[0].path_token_ids == blocks[1].path_token_ids, "the most likely id"
    for block in blocks:
        base = len(PROMPT) + len(block.path_token_ids)
        for node, token_id in enumerate(block.draft.token_ids):
            drawn = redraw(block.draft.distributions[node], node, base + node, block.for_cycle)
            assert token_id == drawn


async def test_c18_the_number_of_tokens_does_not_depend_on_what_was_drawn(drafter: Worker) -> None:
    """An end-of-text token in the draft does not cut it short: neither its length nor the time
    that it takes may tell what was drawn."""
    every_id = SamplingParams(temperature=5.0, stop_token_ids=tuple(range(64)), seed=5)
    async with draft_stream(drafter.address, sampling=every_id, mode=RATIO) as stream:
        blocks = [await drafted(stream, cycle=cycle, num_tokens=8) for cycle in range(20)]
    assert {len(block.draft.token_ids) for block in blocks} == {8}
    drawn = [token_id for block in blocks for token_id in block.draft.token_ids[:-1]]
    assert any(token_id < 64 for token_id in drawn)


# --- verifier ---------------------------------------------------------------------------------


async def honest_draft(drafter: Worker, cycle: int, num_tokens: int = 4) -> common_pb2.Draft:
    async with draft_stream(drafter.address, sampling=SAMPLING, mode=RATIO) as stream:
        return (await drafted(stream, cycle=cycle, num_tokens=num_tokens)).draft


@pytest.mark.parametrize(
    ("asked", "has_distributions", "applied"),
    [
        (verifier_pb2.RATIO_RULE_UNSPECIFIED, True, "block"),
        (BLOCK, True, "block"),
        (REJECTION, True, "rejection"),
        (verifier_pb2.RATIO_RULE_UNSPECIFIED, False, "rejection"),
        (BLOCK, False, "rejection"),
        (REJECTION, False, "rejection"),
    ],
)
async def test_c13_the_rule_follows_from_the_draft(
    verifier: Worker, drafter: Worker, asked: int, has_distributions: bool, applied: str
) -> None:
    draft = await honest_draft(drafter, cycle=1)
    if not has_distributions:
        del draft.distributions[:]
    async with verify_stream(
        verifier.address, sampling=SAMPLING, mode=RATIO, ratio_rule=asked
    ) as stream:
        verdict = (await stream.step(PROMPT, draft=draft, cycle=1, top_ids=4)).verdict
    assert not verdict.invalid_draft
    assert verdict.trace.rule == applied
    assert len(verdict.trace.rows) == 5


async def test_c13_a_tree_of_sampled_nodes_is_invalid(verifier: Worker, drafter: Worker) -> None:
    draft = await honest_draft(drafter, cycle=1, num_tokens=2)
    draft.parents.extend([-1, -1])
    async with verify_stream(verifier.address, sampling=SAMPLING, mode=RATIO) as stream:
        verdict = (await stream.step(PROMPT, draft=draft, cycle=1)).verdict
    assert "parents" in verdict.invalid_draft
    assert not verdict.accepted_nodes


async def test_c13_a_tree_of_point_masses_is_verified(verifier: Worker) -> None:
    """Every row draws from the target; the way that is drawn through the tree is kept."""
    every_id = range(62)
    tree = common_pb2.Draft(token_ids=every_id, parents=[-1] * 62)
    few = SamplingParams(temperature=0.8, top_k=3, max_tokens=64, seed=5)
    async with verify_stream(verifier.address, sampling=few, mode=RATIO) as stream:
        first = (await stream.step(PROMPT, cycle=1)).verdict
        assert first.next_token_kind == verifier_pb2.NEXT_TOKEN_KIND_ONLY
        drawn, accepted = [], 0
        for cycle in range(1, 30):
            verdict = (await stream.step(PROMPT, start=0, draft=tree, cycle=cycle)).verdict
            assert not verdict.invalid_draft
            nodes = list(verdict.accepted_nodes)
            drawn.append(nodes[0] if nodes else verdict.next_token_id)
            accepted += len(nodes)
            bonus = verifier_pb2.NEXT_TOKEN_KIND_BONUS
            assert (verdict.next_token_kind == bonus) == bool(nodes)
            assert verdict.cache_length == len(PROMPT) + len(nodes)
    # The first token of a cycle is drawn from the same three ids, whatever the tree holds.
    assert 1 < len(set(drawn)) <= 3
    assert accepted == sum(token_id in every_id for token_id in drawn)


async def test_c13_an_unknown_rule_is_refused(verifier: Worker) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async with verify_stream(verifier.address, sampling=SAMPLING, mode=RATIO, ratio_rule=9):
            pass
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "open.ratio_rule" in str(caught.value.details())


async def test_c16_the_verifiers_draws_are_those_of_the_contract(
    verifier: Worker, drafter: Worker
) -> None:
    base = len(PROMPT)
    async with verify_stream(
        verifier.address, sampling=SAMPLING, mode=RATIO, ratio_rule=REJECTION
    ) as stream:
        for cycle in range(12):
            draft = await honest_draft(drafter, cycle)
            verdict = (await stream.step(PROMPT, draft=draft, cycle=cycle, top_ids=64)).verdict
            rows = verdict.trace.rows
            num_accepted = len(verdict.accepted_nodes)
            for row in range(4):
                assert rows[row].acceptance_uniform == float(noise.uniform(5, row, base, cycle, 2))
                ratio = rows[row].target_prob / rows[row].draft_prob
                assert rows[row].threshold == pytest.approx(min(1, ratio))
            kept = [row.acceptance_uniform < row.threshold for row in rows[:4]]
            assert num_accepted == (kept.index(False) if False in kept else 4)
            final = float(noise.uniform(5, num_accepted, base, cycle, 3))
            assert verdict.trace.final_uniform == final
            # All of the support is listed, so the inverse over ascending ids can be followed.
            law = sorted(
                zip(verdict.trace.corrected.token_ids, verdict.trace.corrected.probs, strict=True)
            )
            edges = np.cumsum([p for _, p in law])
            assert edges[-1] == pytest.approx(1)
            assert verdict.next_token_id == law[int((edges <= final).sum())][0]


async def test_c19_what_the_proposal_key_does_not_draw_is_invalid(
    verifier: Worker, drafter: Worker
) -> None:
    """Nothing of the drafter's is kept from the first wrong token on."""
    draft = await honest_draft(drafter, cycle=1)
    ids, _ = wire.unpack(draft.distributions[2].ids, draft.distributions[2].counts)
    right = draft.token_ids[2]
    draft.token_ids[2] = next(i for i in ids.tolist() if i != right)
    async with verify_stream(verifier.address, sampling=SAMPLING, mode=RATIO) as stream:
        verdict = (await stream.step(PROMPT, draft=draft, cycle=1)).verdict
        assert "token_ids[2]" in verdict.invalid_draft
        assert len(verdict.accepted_nodes) <= 2
        other_cycle = await honest_draft(drafter, cycle=2)
        verdict = (await stream.step(PROMPT, draft=other_cycle, cycle=3)).verdict
        assert "token_ids[0]" in verdict.invalid_draft, "drawn for another cycle"
        honest = await honest_draft(drafter, cycle=4)
        assert not (await stream.step(PROMPT, draft=honest, cycle=4)).verdict.invalid_draft


async def test_c07_a_repeated_step_repeats_its_verdict(verifier: Worker, drafter: Worker) -> None:
    draft = await honest_draft(drafter, cycle=6)
    answers = []
    for salt in ("a", "b"):
        async with verify_stream(
            verifier.address, sampling=SAMPLING, mode=RATIO, salt=salt
        ) as stream:
            for _ in range(2):
                verdict = (await stream.step(PROMPT, draft=draft, cycle=6)).verdict
                answers.append((tuple(verdict.accepted_nodes), verdict.next_token_id))
    assert len(set(answers)) == 1


@pytest.mark.parametrize("worker", ["verifier", "drafter"])
async def test_c11_ratio_at_temperature_0_is_refused(
    verifier: Worker, drafter: Worker, worker: str
) -> None:
    greedy = SamplingParams(temperature=0.0, seed=1)
    stream = (
        verify_stream(verifier.address, sampling=greedy, mode=RATIO)
        if worker == "verifier"
        else draft_stream(drafter.address, sampling=greedy, mode=RATIO)
    )
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async with stream:
            pass
    assert "open.mode" in str(caught.value.details())


async def test_a_trace_longer_than_allowed_is_refused(verifier: Worker) -> None:
    async with verify_stream(verifier.address, sampling=SAMPLING, mode=RATIO) as stream:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stream.step(PROMPT, top_ids=65)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "step.top_ids" in str(caught.value.details())
