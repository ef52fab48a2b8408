"""Before a drafter is used: one prompt, decoded with it and without, must give the same tokens."""

from contextlib import aclosing
from dataclasses import dataclass

import structlog

from orchestrator.admission import Admission
from orchestrator.generation import Generation
from orchestrator.policy import ConstantLength, SpeculationPlan
from orchestrator.request import Request
from orchestrator.worker import Worker
from orchestrator.workers import Target, WorkerPool
from outrider.identity.probe import PROBE_LINES
from outrider.policy import ON
from outrider.sampling import SamplingParams
from outrider.ties import TIE

NUM_PROMPT_TOKENS = 48
NUM_OUTPUT_TOKENS = 24
NUM_DRAFT_TOKENS = 4
TIMEOUT_S = 60.0
DRAFT_WAIT_S = 1.0

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one run of the canary came to."""

    token_ids: list[int]
    min_margin: float
    num_draft_tokens: int


async def objection(pool: WorkerPool, target: Target, drafter: Worker) -> str:
    """Return why the drafter must not be used for the target; empty if nothing speaks against it.

    Raises: OutriderError if the runs could not be made.
    """
    plain = await _run(pool, target, None)
    drafted = await _run(pool, target, drafter)
    told = {"drafter": drafter.address, "model": target.identity.name}
    if plain.token_ids == drafted.token_ids:
        log.info("canary_passed", num_draft_tokens=drafted.num_draft_tokens, **told)
        return ""
    pairs = zip(plain.token_ids, drafted.token_ids, strict=False)
    at = next((i for i, (one, other) in enumerate(pairs) if one != other), 0)
    margin = min(plain.min_margin, drafted.min_margin)
    if not target.identity.numerics.row_invariant and margin < TIE:
        log.warning("canary_tied", at=at, margin=margin, **told)
        return ""
    log.error("canary_failed", at=at, margin=margin, **told)
    return f"canary: with drafts output token {at} is another one than without"


async def _run(pool: WorkerPool, target: Target, drafter: Worker | None) -> Outcome:
    """Decode greedily, with drafts of the drafter or with none."""
    context = target.identity.max_context_length
    prompt_ids = tuple(
        target.codec.encode("\n".join(PROBE_LINES))[: min(NUM_PROMPT_TOKENS, context // 2)]
    )
    plan = SpeculationPlan((), ConstantLength(0), 0.0, False, "canary")
    if drafter is not None:
        plan = SpeculationPlan((), ConstantLength(NUM_DRAFT_TOKENS), DRAFT_WAIT_S, False, ON)
    num_tokens = min(NUM_OUTPUT_TOKENS, context - len(prompt_ids))
    request = Request(
        request_id="canary",
        target=target,
        prompt_ids=prompt_ids,
        sampling=SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True, seed=0),
        plan=plan,
        cache_salt="canary",
    )
    generation = Generation(request, pool, lambda: TIMEOUT_S, _not_counted, pinned_drafter=drafter)
    async with aclosing(generation.run(Admission(max_running=1, max_waiting=0))) as cycles:
        async for _ in cycles:
            pass
    return Outcome(
        generation.sequence.output_ids,
        generation.stats.min_margin,
        generation.stats.num_draft_tokens,
    )


def _not_counted(generation: Generation) -> None:
    """A canary is no client's request."""
