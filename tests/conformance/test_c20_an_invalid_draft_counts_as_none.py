"""20. An invalid draft is named and treated as no draft; nothing else suffers.

21. A draft token is accepted only where it is the target's own choice.
"""

from pathlib import Path

import pytest

from outrider import wire
from outrider.v1 import common_pb2
from tests.cluster import VERIFIER_NAMES, serving
from tests.conformance.conftest import Worker
from tests.conformance.wire import SAMPLED, verify_stream
from verifier_svc.__main__ import open_verifier
from verifier_svc.settings import VerifierSettings

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.integration]
PROMPT = [10, 20, 30, 40]
IDS, COUNTS = wire.pack([1, 2], [65535, 1])
INVALID = {
    "an id beyond the vocabulary": common_pb2.Draft(token_ids=[1, 512]),
    "the largest id": common_pb2.Draft(token_ids=[2**32 - 1]),
    "too long": common_pb2.Draft(token_ids=[1] * 65),
    "a parent that comes later": common_pb2.Draft(token_ids=[1, 2], parents=[1, 0]),
    "a tree that is too large": common_pb2.Draft(token_ids=[1] * 65, parents=[-1] * 65),
    "a probe that was drawn": common_pb2.Draft(
        token_ids=[1],
        probe=[True],
        distributions=[common_pb2.TokenDistribution(ids=IDS, counts=COUNTS)],
    ),
    "a distribution missing": common_pb2.Draft(
        token_ids=[1, 2], distributions=[common_pb2.TokenDistribution(ids=IDS, counts=COUNTS)]
    ),
    "counts that do not sum": common_pb2.Draft(
        token_ids=[1],
        distributions=[common_pb2.TokenDistribution(ids=IDS, counts=b"\0\0\0\0")],
    ),
    "margins that are no numbers": common_pb2.Draft(token_ids=[1], logit_margins=[float("nan")]),
}


@pytest.mark.parametrize("fault", INVALID)
async def test_the_verdict_is_that_of_no_draft(verifier: Worker, fault: str) -> None:
    async with verify_stream(verifier.address, sampling=SAMPLED, salt="c20") as stream:
        plain = (await stream.step(PROMPT)).verdict
        verdict = (await stream.step(PROMPT, start=3, draft=INVALID[fault])).verdict
        assert verdict.invalid_draft
        assert not plain.invalid_draft
        assert not verdict.accepted_nodes
        assert verdict.next_token_id == plain.next_token_id
        assert verdict.next_token_kind == plain.next_token_kind


async def test_c21_only_the_targets_own_choice_is_accepted(verifier: Worker) -> None:
    async with verify_stream(verifier.address, sampling=SAMPLED, salt="c21") as stream:
        right = (await stream.step(PROMPT)).verdict.next_token_id
        for token_id in range(0, 512, 7):
            verdict = (await stream.step(PROMPT, start=3, draft=[token_id])).verdict
            assert bool(verdict.accepted_nodes) == (token_id == right)
            if token_id != right:
                assert verdict.next_token_id == right


async def test_a_tree_without_room_counts_as_none_and_speaks_against_nobody(toy: Path) -> None:
    settings = VerifierSettings(model=str(toy), dtype="float32", kv_cache_tokens=256)
    wide = common_pb2.Draft(token_ids=range(20), parents=[-1] * 20)
    prompt = list(range(100))
    async with (
        serving(VERIFIER_NAMES, lambda: open_verifier(settings)) as address,
        verify_stream(address, sampling=SAMPLED, salt="room") as stream,
    ):
        plain = (await stream.step(prompt)).verdict
        verdict = (await stream.step(prompt, start=99, draft=wide)).verdict
        assert verdict.no_room_for_draft
        assert "no blocks left" in verdict.invalid_draft
        assert not verdict.accepted_nodes
        assert verdict.next_token_id == plain.next_token_id
        assert verdict.next_token_kind == plain.next_token_kind
        few = common_pb2.Draft(token_ids=range(3), parents=[-1] * 3)
        verdict = (await stream.step(prompt, start=99, draft=few)).verdict
        assert not verdict.no_room_for_draft
        assert not verdict.invalid_draft
