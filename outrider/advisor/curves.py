"""Acceptance and cost by draft length, from the costs of cycles."""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from outrider.advisor.runs import Answer, Run
from outrider.gain import accepted_of_chain
from outrider.monotone_table import Bucket, MonotoneTable, bucket_of
from outrider.v1 import generation_pb2 as pb


def decoding(answers: Iterable[Answer]) -> list[pb.CycleCost]:
    """Return the cycles behind those that read the prompts, without the last of each answer: it
    may end within a draft, or have no room for one."""
    return [cost for answer in answers for cost in answer.costs[1:-1]]


@dataclass(frozen=True, slots=True)
class Acceptance:
    """What became of the drafts of one source under one draft length.

    ``arrival``: share of wanted drafts that came. ``reached`` and ``kept`` count draft tokens by
    position whose prefix was accepted, and those of them that were accepted; of a tree its levels,
    as far as they were reached.
    """

    num_cycles: int
    num_drafts: int
    num_accepted: int
    is_tree: bool
    reached: tuple[int, ...]
    kept: tuple[int, ...]

    @property
    def arrival(self) -> float:
        """Share of cycles that had a draft."""
        return self.num_drafts / max(self.num_cycles, 1)

    @property
    def mean_acceptance_length(self) -> float:
        """1 + accepted tokens / drafts."""
        return 1 + self.accepted

    @property
    def accepted(self) -> float:
        """Accepted tokens of a draft."""
        return self.num_accepted / max(self.num_drafts, 1)

    @property
    def by_position(self) -> list[float]:
        """Share of drafts of which at least 1, 2, 3, ... tokens were accepted."""
        return [kept / max(self.num_drafts, 1) for kept in self.kept]


def acceptance(cycles: Sequence[pb.CycleCost], num_draft_tokens: int) -> Acceptance:
    """Count what became of drafts of at most so many tokens."""
    reached, kept = [0] * num_draft_tokens, [0] * num_draft_tokens
    drafted = [cycle for cycle in cycles if cycle.num_draft_tokens]
    for cycle in drafted:
        num_accepted = cycle.num_accepted_draft_tokens
        for position in range(min(num_accepted + 1, cycle.num_draft_tokens)):
            reached[position] += 1
            kept[position] += position < num_accepted
    return Acceptance(
        num_cycles=len(cycles),
        num_drafts=len(drafted),
        num_accepted=sum(cycle.num_accepted_draft_tokens for cycle in drafted),
        is_tree=any(cycle.is_tree for cycle in drafted),
        reached=tuple(reached),
        kept=tuple(kept),
    )


def expected_accepted(by_length: Mapping[int, Acceptance]) -> dict[int, float]:
    """Return the accepted tokens to expect of a draft, by draft length.

    Chains of all lengths tell of their common positions, trees each of its own length.
    """
    if any(each.is_tree for each in by_length.values()):
        return {length: each.accepted for length, each in by_length.items()}
    longest = max(by_length, default=0)
    conditionals: list[float] = []
    for position in range(longest):
        reached = sum(each.reached[position] for each in _as_long(by_length, position))
        kept = sum(each.kept[position] for each in _as_long(by_length, position))
        conditionals.append(kept / reached if reached else 0.0)
    accepted = accepted_of_chain(conditionals)
    return {length: accepted[length] for length in by_length}


def _as_long(by_length: Mapping[int, Acceptance], position: int) -> list[Acceptance]:
    return [each for length, each in by_length.items() if length > position]


@dataclass(frozen=True, slots=True)
class CycleTimes:
    """What cycles of one setting took. Units: milliseconds.

    ``rows``: of a pass, all sequences together; ``own_rows``: of a step; ``beside``: of a round
    trip beyond its pass; ``wait``: for the draft; ``compute``: of the draft, as the drafter states.
    """

    pass_ms: float
    beside_ms: float
    wait_ms: float
    compute_ms: float
    rows: float
    own_rows: float

    @property
    def verification_ms(self) -> float:
        """A round trip."""
        return self.pass_ms + self.beside_ms


def cycle_times(cycles: Sequence[pb.CycleCost]) -> CycleTimes:
    """Average cycles; Raises: ValueError without any."""
    if not cycles:
        raise ValueError("no cycle behind the prompt: the answers are too short")
    drafted = [cycle for cycle in cycles if cycle.num_draft_tokens] or cycles
    return CycleTimes(
        pass_ms=statistics.fmean(cycle.compute_ms for cycle in drafted),
        beside_ms=statistics.fmean(cycle.round_trip_ms - cycle.compute_ms for cycle in drafted),
        wait_ms=statistics.fmean(cycle.draft_wait_ms for cycle in cycles),
        compute_ms=statistics.fmean(cycle.draft_compute_ms for cycle in drafted),
        rows=statistics.fmean(cycle.rows_in_pass for cycle in drafted),
        own_rows=statistics.fmean(cycle.num_rows for cycle in drafted),
    )


def pass_times(runs: Iterable[Run]) -> MonotoneTable:
    """Return what a pass of the target takes by all its rows, in milliseconds: medians."""
    samples: dict[int, list[float]] = defaultdict(list)
    for run in runs:
        for cycle in decoding(run.answers):
            if cycle.num_passes == 1:
                samples[bucket_of(cycle.rows_in_pass)].append(cycle.compute_ms)
    buckets = {at: Bucket(statistics.median(each), len(each)) for at, each in samples.items()}
    return MonotoneTable(buckets=buckets)
