"""17, 18: in RATIO the orchestrator uses a block whole, in the one cycle it was drawn for."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from outrider.client import Client, generate_request
from outrider.sampling import AcceptanceRule, SamplingParams
from outrider.v1 import common_pb2, drafter_pb2, verifier_pb2
from outrider.v1 import generation_pb2 as pb
from tests.cluster import cluster
from tests.conformance.conftest import Worker
from tests.conformance.relay import Change, relay

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.integration]

SAMPLING = SamplingParams(temperature=0.9, seed=4, max_tokens=40, ignore_eos=True)
BLOCK = AcceptanceRule.BLOCK


class Seen:
    """What passed between the services."""

    def __init__(self) -> None:
        self.blocks: list[drafter_pb2.DraftBlock] = []
        self.steps: list[verifier_pb2.Step] = []
        self.asked: dict[int, set[int]] = {}
        """Draft tokens asked for, by the cycle that may use them."""
        self.drafter_mode = self.verifier_mode = self.ratio_rule = None
        self.keys: set[int] = set()

    def to_drafter(self, message: bytes) -> Iterable[bytes]:
        request = drafter_pb2.DraftRequest.FromString(message)
        if request.WhichOneof("kind") == "open":
            self.drafter_mode = request.open.mode
            self.keys.add(request.open.noise_key)
        elif request.WhichOneof("kind") == "advance":
            advance = request.advance
            self.asked.setdefault(advance.for_cycle, set()).add(advance.max_draft_tokens)
        return (message,)

    def from_drafter(self, message: bytes) -> Iterable[bytes]:
        response = drafter_pb2.DraftResponse.FromString(message)
        if response.block.draft.token_ids:
            self.blocks.append(response.block)
        return (message,)

    def to_verifier(self, message: bytes) -> Iterable[bytes]:
        request = verifier_pb2.VerifyRequest.FromString(message)
        if request.WhichOneof("kind") == "open":
            self.verifier_mode, self.ratio_rule = request.open.mode, request.open.ratio_rule
            self.keys.add(request.open.seed)
        else:
            self.steps.append(request.step)
        return (message,)

    @property
    def speculative_steps(self) -> list[verifier_pb2.Step]:
        return [step for step in self.steps if step.draft.token_ids]


async def run(
    verifier: Worker,
    drafter: Worker,
    seen: Seen,
    *,
    change: Change | None = None,
    k: int | None = 3,
    max_outcomes: int = 1,
    temperature: float = SAMPLING.temperature,
) -> pb.GenerateComplete:
    async def ask(client: Client) -> pb.GenerateComplete:
        request = generate_request(
            [10, 20, 30],
            replace(SAMPLING, temperature=temperature),
            sources=["model"],
            num_draft_tokens=k,
            acceptance_rule=BLOCK,
        )
        return (await client.generate(request, timeout_s=30)).complete

    async with cluster(
        verifiers=[relay(verifier.address, "Verify", requests=seen.to_verifier)],
        drafters=[
            relay(
                drafter.address,
                "Draft",
                requests=seen.to_drafter,
                responses=change or seen.from_drafter,
            )
        ],
        draft_wait_ms=10_000,
        num_draft_tokens="auto",
        lookup_on_miss=k is not None,
        max_outcomes=max_outcomes,
    ) as services:
        return await ask(services.client)


async def test_every_draft_is_one_whole_block_of_its_cycle(
    verifier: Worker, drafter: Worker
) -> None:
    seen = Seen()
    complete = await run(verifier, drafter, seen)
    assert seen.drafter_mode == seen.verifier_mode == common_pb2.MODE_RATIO
    assert seen.ratio_rule == verifier_pb2.RATIO_RULE_BLOCK
    assert len(seen.keys) == 2, "the drafter is never told the seed"
    assert complete.receipt.rule == "block"
    assert complete.receipt.num_draft_tokens > 20
    assert not [each for each in complete.receipt.fallbacks if each.reason == "invalid_draft"]
    assert len(seen.speculative_steps) > 5
    whole = {(block.for_cycle, tuple(block.draft.token_ids)) for block in seen.blocks}
    for step in seen.speculative_steps:
        assert (step.cycle, tuple(step.draft.token_ids)) in whole


async def test_of_several_outcomes_the_block_of_the_one_that_happened_is_used(
    verifier: Worker, drafter: Worker
) -> None:
    seen = Seen()
    complete = await run(verifier, drafter, seen, max_outcomes=5, temperature=0.3)
    whole_text = [10, 20, 30, *complete.output_ids]
    num_ahead, paths_by_cycle = 0, {}
    for block in seen.blocks:
        paths_by_cycle.setdefault(block.for_cycle, []).append(tuple(block.path_token_ids))
    assert max(map(len, paths_by_cycle.values())) >= 5
    for step in seen.steps:
        text = whole_text[: step.start + len(step.token_ids)]
        if not step.draft.token_ids or step.draft.source != "model":
            continue
        fitting = [
            block
            for block in seen.blocks
            if block.for_cycle == step.cycle
            and text == [*text[: block.base_length], *block.path_token_ids]
        ]
        assert list(step.draft.token_ids) in [list(block.draft.token_ids) for block in fitting]
        num_ahead += any(block.path_token_ids for block in fitting)
    assert num_ahead > 3, (num_ahead, len(seen.steps), len(seen.blocks))


async def test_blocks_that_claim_another_outcome_are_left_alone(
    verifier: Worker, drafter: Worker
) -> None:
    """Every path is shifted to an outcome that cannot happen; only drafts made anew are used."""
    seen = Seen()

    def misplace(message: bytes) -> Iterable[bytes]:
        response = drafter_pb2.DraftResponse.FromString(message)
        if response.block.path_token_ids:
            response.block.path_token_ids[-1] ^= 256
        return tuple(seen.from_drafter(response.SerializeToString()))

    complete = await run(verifier, drafter, seen, change=misplace, max_outcomes=5, temperature=0.3)
    assert complete.completion_tokens == 40
    blocks = {each.reason: each.count for each in complete.receipt.draft_blocks}
    num_misplaced = sum(bool(block.path_token_ids) for block in seen.blocks)
    assert num_misplaced > 5
    # All of them but those of the last cycle, which nobody may have looked at; speed decides how
    # many there are.
    assert num_misplaced - 5 <= blocks["stale"], (blocks, num_misplaced)
    own = {tuple(b.draft.token_ids) for b in seen.blocks if not b.path_token_ids}
    models = [step for step in seen.speculative_steps if step.draft.source == "model"]
    assert all(tuple(step.draft.token_ids) in own for step in models)


async def test_a_block_of_another_cycle_is_never_used(verifier: Worker, drafter: Worker) -> None:
    """Blocks arrive that fit the text but were drawn for the cycle before or after."""
    seen = Seen()

    def misdate(message: bytes) -> Iterable[bytes]:
        response = drafter_pb2.DraftResponse.FromString(message)
        if response.WhichOneof("kind") == "block":
            response.block.for_cycle += -1 if response.block.for_cycle % 2 else 1
        return (response.SerializeToString(),)

    complete = await run(verifier, drafter, seen, change=misdate)
    assert complete.completion_tokens == 40
    assert not any(step.draft.source == "model" for step in seen.speculative_steps)


async def test_a_block_that_is_too_long_is_left_out_whole(
    verifier: Worker, drafter: Worker
) -> None:
    """Cutting it would be fine for its law only if the cut were known before the first draw."""
    seen = Seen()

    def lengthen(message: bytes) -> Iterable[bytes]:
        response = drafter_pb2.DraftResponse.FromString(message)
        draft = response.block.draft
        if len(draft.token_ids) > 1:
            draft.token_ids.append(draft.token_ids[-1])
            draft.distributions.append(draft.distributions[-1])
            draft.logit_margins.append(0.0)
        return (response.SerializeToString(),)

    complete = await run(verifier, drafter, seen, change=lengthen)
    reasons = {each.reason: each.count for each in complete.receipt.fallbacks}
    assert reasons["draft_too_long"] > 5
    assert not any(len(step.draft.token_ids) > 3 for step in seen.steps)


async def test_a_chosen_length_is_the_same_for_every_block_of_its_cycle(
    verifier: Worker, drafter: Worker
) -> None:
    """18: asked for while the cycle before is verified, or again after its verdict, it is one
    number; only where the output ends soon may the second be smaller, which the text decides."""
    seen = Seen()
    complete = await run(verifier, drafter, seen, k=None)
    assert complete.completion_tokens == 40
    assert sum(complete.receipt.draft_lengths.histogram[1:]) > 5
    ends = [step.cycle for step in seen.steps if step.start + len(step.token_ids) > 25]
    asked = {cycle: ks for cycle, ks in seen.asked.items() if cycle < min(ends)}
    assert len(asked) > 2
    assert all(len(lengths) == 1 for lengths in asked.values())
    whole = {(block.for_cycle, tuple(block.draft.token_ids)) for block in seen.blocks}
    for step in seen.speculative_steps:
        assert (step.cycle, tuple(step.draft.token_ids)) in whole
