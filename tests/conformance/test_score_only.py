"""A draft that is only judged changes nothing: the verdict is that of the same step without it."""

import pytest

from outrider.sampling import SamplingParams
from outrider.v1 import common_pb2, verifier_pb2
from tests.conformance.conftest import Worker
from tests.conformance.test_c13_c16_c17_c18_c19_ratio import BLOCK, REJECTION, honest_draft
from tests.conformance.wire import GREEDY, SAMPLED, VerifyStream, verify_stream

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.integration]

PROMPT = [10, 20, 30, 40]
NUM_CYCLES = 8
RATIO = SamplingParams(temperature=0.8, top_k=40, max_tokens=64, seed=5, logprobs=3)
ONLY = verifier_pb2.NEXT_TOKEN_KIND_ONLY


def decided(verdict: verifier_pb2.Verdict) -> list[object]:
    """What must be equal, to the bit."""
    return [
        list(verdict.accepted_nodes),
        verdict.next_token_id,
        verdict.next_token_kind,
        verdict.cache_length,
        verdict.min_decision_margin,
        [each.SerializeToString() for each in verdict.logprobs],
        verdict.trace.SerializeToString(),
        list(verdict.rank_uniforms),
    ]


async def plain_run(stream: VerifyStream, *, top_ids: int = 0) -> list[verifier_pb2.Verdict]:
    """Decode without drafts."""
    ids, verdicts = list(PROMPT), []
    for cycle in range(NUM_CYCLES):
        start = len(ids) - 1 if cycle else 0
        verdicts.append((await stream.step(ids, start, cycle=cycle, top_ids=top_ids)).verdict)
        ids.append(verdicts[-1].next_token_id)
    return verdicts


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "coupled"])
@pytest.mark.parametrize("top_ids", [0, 3])
async def test_chains_in_greedy_and_coupled(
    verifier: Worker, sampling: SamplingParams, top_ids: int
) -> None:
    async with verify_stream(verifier.address, sampling=sampling, salt="plain") as stream:
        plain = await plain_run(stream, top_ids=top_ids)
    output = [verdict.next_token_id for verdict in plain]
    async with verify_stream(verifier.address, sampling=sampling, salt="scored") as stream:
        ids = list(PROMPT)
        for cycle, expected in enumerate(plain):
            right = output[cycle : cycle + 3]
            wrong = (right[-1] + 1) % 512
            start = len(ids) - 1 if cycle else 0
            verdict = (
                await stream.step(
                    ids,
                    start,
                    draft=[*right, wrong],
                    cycle=cycle,
                    score_only=True,
                    top_ids=top_ids,
                )
            ).verdict
            assert decided(verdict) == decided(expected)
            assert verdict.next_token_kind == ONLY
            known = min(len(right), len(output) - cycle)
            assert list(verdict.scored_nodes)[:known] == list(range(known))
            assert len(verdict.scored_nodes) in (known, known + 1)  # behind the output none knows
            ids.append(verdict.next_token_id)


async def test_trees_are_judged_along_their_path(verifier: Worker) -> None:
    async with verify_stream(verifier.address, salt="plain") as stream:
        plain = await plain_run(stream)
    first, second = plain[0].next_token_id, plain[1].next_token_id
    draft = common_pb2.Draft(
        token_ids=[(first + 1) % 512, first, (second + 1) % 512, second], parents=[-1, -1, 1, 1]
    )
    async with verify_stream(verifier.address, salt="tree") as stream:
        verdict = (await stream.step(PROMPT, draft=draft, cycle=0, score_only=True)).verdict
        assert decided(verdict) == decided(plain[0])
        assert list(verdict.scored_nodes) == [1, 3]
        ids = [*PROMPT, verdict.next_token_id]
        following = (await stream.step(ids, start=len(PROMPT), cycle=1)).verdict
        assert decided(following) == decided(plain[1])


@pytest.mark.parametrize("rule", [REJECTION, BLOCK], ids=["rejection", "block"])
async def test_in_ratio_the_noise_is_that_of_the_step_without_a_draft(
    verifier: Worker, drafter: Worker, rule: int
) -> None:
    """What is drawn is keyed by row and cycle; the draft's own verdict would have been another."""
    mode = common_pb2.MODE_RATIO
    num_scored, used = 0, []
    for cycle in range(NUM_CYCLES):
        draft = await honest_draft(drafter, cycle=cycle)
        verdicts = []
        for kind in ("plain", "scored", "used"):
            async with verify_stream(
                verifier.address, sampling=RATIO, mode=mode, ratio_rule=rule, salt=kind
            ) as stream:
                step = await stream.step(
                    PROMPT,
                    draft=() if kind == "plain" else draft,
                    cycle=cycle,
                    rank_uniforms=True,
                    score_only=kind == "scored",
                )
                verdicts.append(step.verdict)
        plain, scored, really = verdicts
        assert decided(scored) == decided(plain)
        assert list(scored.scored_nodes) == list(really.accepted_nodes)
        num_scored += len(scored.scored_nodes)
        used.append(really.next_token_id != plain.next_token_id or bool(really.accepted_nodes))
    assert num_scored > 0
    assert any(used), "a draft that is used does change what is committed"


async def test_without_a_draft_nothing_is_scored(verifier: Worker) -> None:
    async with verify_stream(verifier.address, salt="none") as stream:
        verdict = (await stream.step(PROMPT, cycle=0, score_only=True)).verdict
    assert not verdict.scored_nodes
    assert verdict.next_token_kind == ONLY


async def test_an_invalid_draft_is_told_and_scored_as_none(verifier: Worker) -> None:
    async with verify_stream(verifier.address, salt="invalid") as stream:
        verdict = (await stream.step(PROMPT, draft=[2**31], cycle=0, score_only=True)).verdict
    assert "token_ids[0]" in verdict.invalid_draft
    assert not verdict.scored_nodes


async def test_judged_drafts_leave_no_kv_behind(verifier: Worker) -> None:
    async with verify_stream(verifier.address, salt="kv") as stream:
        verdict = (await stream.step(PROMPT, draft=[1, 2, 3], cycle=0, score_only=True)).verdict
        assert verdict.cache_length == len(PROMPT)
    await verifier.freed()
