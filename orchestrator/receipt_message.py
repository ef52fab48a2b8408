"""Receipts as messages."""

from collections.abc import Mapping

from orchestrator.generation import Generation
from orchestrator.receipt import Stats, dense
from orchestrator.request import Request
from orchestrator.shadow import ShadowRecord
from outrider.errors import OutriderError
from outrider.policy import SpeculationOptions
from outrider.sampling import Mode
from outrider.v1 import generation_pb2


def receipt_of(generation: Generation) -> generation_pb2.Receipt:
    """Return the receipt of a request that has ended, in whatever way."""
    stats, request = generation.stats, generation.request
    outcome = generation.outcome
    if generation.failure is not None and not generation.was_admitted:
        outcome = "refused"
    receipt = generation_pb2.Receipt(
        request_id=request.request_id,
        outcome=outcome,
        rule="greedy" if request.mode is Mode.GREEDY else request.plan.rule.value,
        seed=0 if request.mode is Mode.GREEDY else request.sampling.seed,
        arrived_at_s=request.arrived_at_s,
        target=request.target.identity.to_proto(),
        num_prompt_tokens=len(request.prompt_ids),
        num_output_tokens=stats.num_output_tokens,
        num_cached_tokens=stats.cached_tokens,
        num_cycles=stats.num_cycles,
        num_spec_steps=stats.num_spec_steps,
        num_draft_tokens=stats.num_draft_tokens,
        num_accepted_draft_tokens=stats.num_accepted_draft_tokens,
        num_discarded_draft_tokens=(
            stats.num_draft_tokens
            - stats.num_accepted_draft_tokens
            + generation.num_discarded_tokens
        ),
        draft_acceptance_rate=stats.draft_acceptance_rate,
        mean_acceptance_length=stats.mean_acceptance_length,
        acceptance_histogram=stats.histogram(),
        draft_size_histogram=dense(stats.draft_sizes),
        num_target_passes=stats.num_target_passes,
        num_passes_saved=stats.num_passes_saved,
        fallbacks=_reason_counts(stats.fallbacks),
        queue_ms=stats.queue_ms,
        draft_ms=stats.draft_ms,
        verify_ms=stats.verify_ms,
        prefill_ms=stats.prefill_ms,
        network_ms=stats.network_ms,
        ttft_ms=stats.ttft_ms,
        total_ms=generation.elapsed_ms,
        drafts_by_source=stats.drafts_by_source,
        draft_tokens_by_source=stats.draft_tokens_by_source,
        accepted_tokens_by_source=stats.accepted_tokens_by_source,
        index=request.index,
        decision="; ".join(filter(None, (request.plan.decision, _bounds(request.options)))),
        min_decision_margin=stats.min_margin,
        num_ledger_heals=generation.num_ledger_heals,
        num_failovers=stats.num_failovers,
        num_feature_bytes=stats.num_feature_bytes,
        draft_blocks=_block_counts(stats),
    )
    if outcome in ("error", "refused"):
        failure = generation.failure
        receipt.status_code = "INTERNAL" if failure is None else failure.code.name
        receipt.error = "" if failure is None else str(failure)
    _add_policy(receipt, request)
    _add_lengths(receipt, stats if generation.shadow is None else generation.shadow.stats)
    _add_drafter(receipt, generation)
    if generation.shadow is not None:
        receipt.shadow.CopyFrom(_shadow(generation.shadow))
    return receipt


def refusal_of(
    message: generation_pb2.GenerateRequest,
    request_id: str,
    error: OutriderError,
    arrived_at_s: float,
) -> generation_pb2.Receipt:
    """Return the receipt of a request that was not admitted, as far as it was read."""
    return generation_pb2.Receipt(
        request_id=request_id,
        outcome="refused",
        status_code=error.code.name,
        error=str(error),
        arrived_at_s=arrived_at_s,
        traits=generation_pb2.RequestTraits(model=message.model, priority=message.priority),
        requested=message.speculation if message.HasField("speculation") else None,
    )


def _add_policy(receipt: generation_pb2.Receipt, request: Request) -> None:
    """Tell what the policy saw, and what it decided."""
    receipt.traits.CopyFrom(request.traits.to_proto())
    if request.options != SpeculationOptions():
        receipt.requested.CopyFrom(request.options.to_proto())
    decision = request.decision
    if decision is None:
        return
    chosen = decision.workload_class
    receipt.policy.CopyFrom(
        generation_pb2.PolicyDecision(
            version=decision.policy.version,
            digest=decision.policy.digest,
            workload_class=decision.class_name,
            class_index=decision.class_index,
            speculation=decision.speculation.value,
            sources=decision.sources,
            drafters=chosen.drafters if chosen is not None else (),
            narrowed=decision.narrowed,
            excerpt_json=decision.excerpt,
        )
    )


def _add_lengths(receipt: generation_pb2.Receipt, stats: Stats) -> None:
    if stats.draft_lengths:
        receipt.draft_lengths.histogram.extend(dense(stats.draft_lengths))
        receipt.draft_lengths.reasons.extend(_reason_counts(stats.length_reasons))
        receipt.draft_lengths.predicted_gain = stats.predicted_gain


def _add_drafter(receipt: generation_pb2.Receipt, generation: Generation) -> None:
    drafter, request = generation.drafter, generation.request
    if drafter is None or drafter.identity is None:
        return
    receipt.drafter.CopyFrom(drafter.identity.to_proto())
    receipt.drafter_address = drafter.address
    if request.target.identity.name in drafter.overridden_targets:
        receipt.decision = f"{receipt.decision}; a chat template difference was overridden"


def _bounds(options: SpeculationOptions) -> str:
    """Return the range of draft lengths that a request asked for, in words."""
    bounds = ("at least", options.min_draft_tokens), ("at most", options.max_draft_tokens)
    asked = " and ".join(f"{word} {number}" for word, number in bounds if number is not None)
    return asked and f"{asked} draft tokens, as the request asked"


def _shadow(record: ShadowRecord) -> generation_pb2.ShadowResults:
    stats = record.stats
    return generation_pb2.ShadowResults(
        judged_by=record.judged_by,
        num_cycles=stats.num_cycles,
        num_covered_tokens=stats.num_output_tokens,
        num_spec_steps=stats.num_spec_steps,
        num_draft_tokens=stats.num_draft_tokens,
        num_accepted_draft_tokens=stats.num_accepted_draft_tokens,
        draft_acceptance_rate=stats.draft_acceptance_rate,
        mean_acceptance_length=stats.mean_acceptance_length,
        acceptance_histogram=stats.histogram(),
        num_passes_saved=stats.num_passes_saved,
        draft_ms=stats.draft_ms,
        expected_ms=record.expected_ms,
        target_only_ms=record.target_only_ms,
        fallbacks=_reason_counts(stats.fallbacks),
        draft_blocks=_block_counts(stats),
        drafts_by_source=stats.drafts_by_source,
        draft_tokens_by_source=stats.draft_tokens_by_source,
        accepted_tokens_by_source=stats.accepted_tokens_by_source,
    )


def _block_counts(stats: Stats) -> list[generation_pb2.ReasonCount]:
    return _reason_counts({each.value: n for each, n in stats.blocks.items() if n})


def _reason_counts(counts: Mapping[str, int]) -> list[generation_pb2.ReasonCount]:
    return [
        generation_pb2.ReasonCount(reason=reason, count=count)
        for reason, count in sorted(counts.items())
    ]
