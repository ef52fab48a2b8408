"""What is counted while a sequence is decoded; receipt and measures are made from it."""

import enum
from collections import Counter
from dataclasses import dataclass, field, replace

from orchestrator.draft_length import Choice
from orchestrator.verdict import CommittedToken, Origin, Verdict
from outrider.draft import NO_DRAFT, Draft


class BlockResult(enum.Enum):
    """What came of a drafter's blocks: one of the first three a cycle, ``STALE`` a block."""

    HIT = "hit"  # a block that was drafted ahead fitted when it was needed
    MISS = "miss"  # none fitted, and the drafter had to begin anew
    LATE = "late"  # the drafter was still at work when the cycle went on without it
    STALE = "stale"  # dropped unused


@dataclass(slots=True)
class Stats:
    """Counts and times of one sequence, from the verdicts as they were delivered.

    Units: times in milliseconds. A draft token counts as accepted only if it was delivered to the
        client.
    """

    num_cycles: int = 0
    num_spec_steps: int = 0
    num_draft_tokens: int = 0
    num_accepted_draft_tokens: int = 0
    num_target_passes: int = 0
    num_output_tokens: int = 0
    cached_tokens: int = 0
    num_failovers: int = 0
    num_feature_bytes: int = 0
    draft_ms: float = 0.0
    verify_ms: float = 0.0
    prefill_ms: float = 0.0
    """Of ``verify_ms``, in the first cycle."""
    network_ms: float = 0.0
    queue_ms: float = 0.0
    ttft_ms: float = 0.0
    min_margin: float = float("inf")
    acceptance_histogram: Counter[int] = field(default_factory=Counter)
    draft_sizes: Counter[int] = field(default_factory=Counter)
    """Verified drafts by the tokens of theirs that might have been accepted."""
    drafts_by_source: Counter[str] = field(default_factory=Counter)
    draft_tokens_by_source: Counter[str] = field(default_factory=Counter)
    accepted_tokens_by_source: Counter[str] = field(default_factory=Counter)
    blocks: Counter[BlockResult] = field(default_factory=Counter)
    fallbacks: Counter[str] = field(default_factory=Counter)
    draft_lengths: Counter[int] = field(default_factory=Counter)
    length_reasons: Counter[str] = field(default_factory=Counter)
    predicted_gain: float = 1.0

    def note_fallback(self, reason: str) -> None:
        """Count a cycle without a usable draft, or the loss of a drafter."""
        self.fallbacks[reason] += 1

    def note_blocks(self, result: BlockResult, count: int = 1) -> None:
        """Count what came of a drafter's blocks."""
        self.blocks[result] += count

    def note_length(self, choice: Choice) -> None:
        """Count the draft length that a cycle asked for."""
        self.draft_lengths[choice.num_tokens] += 1
        self.length_reasons[choice.reason.value] += 1
        self.predicted_gain = choice.gain

    def observe(self, draft: Draft, verdict: Verdict, delivered: list[CommittedToken]) -> None:
        """Count one cycle; ``delivered`` are its committed tokens up to the end of the sequence.

        A draft that was only judged counts as none.
        """
        if verdict.scored_nodes is not None:
            draft = NO_DRAFT
            verdict = replace(verdict, invalid_draft="", no_room_for_draft=False)
        served_ms = verdict.queue_ms + verdict.compute_ms
        if self.num_cycles == 0:
            self.cached_tokens, self.prefill_ms = verdict.cached_tokens, served_ms
        self.num_cycles += 1
        self.num_target_passes += verdict.num_passes
        self.num_output_tokens += len(delivered)
        if verdict.features.chunks:
            self.num_feature_bytes += verdict.features.num_bytes
        self.verify_ms += served_ms
        self.network_ms += max(verdict.round_trip_ms - served_ms, 0.0)
        self.min_margin = min(self.min_margin, verdict.margin)
        if verdict.no_room_for_draft:
            self.note_fallback("no_room_for_draft")
        elif verdict.invalid_draft:
            self.note_fallback("invalid_draft")
        if draft and not draft.num_proposed:
            self.note_fallback("probes_only")
        # In RATIO the tokens before a wrong one are still of use.
        if draft.num_proposed and (not verdict.invalid_draft or verdict.num_accepted):
            accepted = [token.origin for token in delivered].count(Origin.ACCEPTED)
            self.num_spec_steps += 1
            self.num_draft_tokens += draft.num_proposed
            self.num_accepted_draft_tokens += accepted
            self.acceptance_histogram[accepted] += 1
            self.draft_sizes[draft.num_proposed] += 1
            self.drafts_by_source[draft.source] += 1
            self.draft_tokens_by_source[draft.source] += draft.num_proposed
            self.accepted_tokens_by_source[draft.source] += accepted

    @property
    def draft_acceptance_rate(self) -> float:
        """Accepted over verified draft tokens; 0 without drafts."""
        return self.num_accepted_draft_tokens / max(self.num_draft_tokens, 1)

    @property
    def mean_acceptance_length(self) -> float:
        """1 + accepted / speculative cycles; 1 without drafts."""
        return 1 + self.num_accepted_draft_tokens / max(self.num_spec_steps, 1)

    @property
    def num_passes_saved(self) -> int:
        """Passes of target-only decoding minus passes taken.

        Both take the same passes for the prompt, so the difference is tokens minus cycles.
        """
        return self.num_output_tokens - self.num_cycles

    def histogram(self) -> list[int]:
        """Return the counts of speculative cycles by accepted tokens, dense from 0."""
        return dense(self.acceptance_histogram)

    def accepted_by_position(self) -> list[int]:
        """Return how often the draft token at each position was accepted, from position 0 on."""
        histogram = self.histogram()
        return [sum(histogram[position:]) for position in range(1, len(histogram))]


def dense(counts: Counter[int]) -> list[int]:
    """Return counts by their number from 0 to the highest there is."""
    return [counts[number] for number in range(max(counts, default=-1) + 1)]
