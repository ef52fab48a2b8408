"""Figures of turns: speed, latency, what speculation saved, and ratios of the same repeat."""

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from bench.peers.contestants import BASES, TARGET_ONLY, Contestant
from bench.peers.turn import Answer, Played

PARTS = ("queue", "draft", "verify", "network")
Turns = Mapping[tuple[Contestant, int], Sequence[Played]]
"""The turns of a contestant at so many streams, one a repeat, all of the same prompts."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Median and extremes."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> "Spread":
        """Return the spread of at least one value."""
        some = list(values)
        return cls(statistics.median(some), min(some), max(some))


@dataclass(frozen=True, slots=True)
class Figures:
    """One contestant at one number of streams, over all repeats."""

    tokens_per_s: Spread
    """All streams together, from the first prompt sent to the last token; one value a repeat."""
    ttft_ms: Spread
    """Milliseconds from sending a prompt to its first token, of all answers."""
    tpot_p50_ms: float
    """Milliseconds per token after those of the first pass, of all answers."""
    tpot_p99_ms: float
    mean_acceptance_length: float
    """Tokens per target pass after the first pass, passes without a draft included."""
    passes_saved: float
    """Target passes that were saved, as a share of those of target-only decoding."""
    tokens_per_s_per_core: float
    cores_busy: float
    """CPU seconds per second of the turns."""
    peak_rss_bytes: int
    shares: dict[str, float]
    """Where the time of Outrider's requests went, by part; empty for others."""
    ratios: dict[str, Spread]
    """Tokens per second over those of a base in the same repeat, by the base's name."""
    num_equal: int
    """Answers whose ids are those of Outrider's target-only decoding in its first repeat."""
    num_answers: int


def figures(turns: Turns, contestant: Contestant, num_streams: int, num_cores: int) -> Figures:
    """Return the figures of a contestant that has played at least one turn."""
    played = turns[contestant, num_streams]
    answers = [answer for turn in played for answer in turn.answers]
    speeds = [tokens_per_s(turn) for turn in played]
    tpots = [value for answer in answers if (value := tpot_ms(answer)) is not None]
    reference = turns.get((TARGET_ONLY, num_streams))
    expected = [answer.ids for answer in reference[0].answers] if reference else []
    return Figures(
        tokens_per_s=Spread.of(speeds),
        ttft_ms=Spread.of(1e3 * answer.arrivals[0][0] for answer in answers),
        tpot_p50_ms=percentile(tpots, 50),
        tpot_p99_ms=percentile(tpots, 99),
        mean_acceptance_length=mean_acceptance_length(answers),
        passes_saved=passes_saved(answers),
        tokens_per_s_per_core=statistics.median(speeds) / num_cores,
        cores_busy=sum(turn.cpu_s for turn in played) / sum(turn.wall_s for turn in played),
        peak_rss_bytes=max(turn.peak_rss_bytes for turn in played),
        shares=shares(answers),
        ratios={
            base.name: ratios(played, turns[base, num_streams])
            for base in BASES
            if turns.get((base, num_streams))
        },
        num_equal=sum(
            answer.ids == ids
            for turn in played
            for answer, ids in zip(turn.answers, expected, strict=False)
        ),
        num_answers=len(answers),
    )


def tokens_per_s(turn: Played) -> float:
    """Return the tokens of all answers over the time of the turn."""
    return sum(len(answer.ids) for answer in turn.answers) / turn.wall_s


def tpot_ms(answer: Answer) -> float | None:
    """Return milliseconds per token behind the first pass; None if that pass gave all tokens."""
    (first_s, _), (last_s, _) = answer.arrivals[0], answer.arrivals[-1]
    num_later = sum(num for _, num in answer.arrivals[1:])
    return 1e3 * (last_s - first_s) / num_later if num_later else None


def mean_acceptance_length(answers: Iterable[Answer]) -> float:
    """Return tokens per target pass, the first pass of each answer left out; 1 without others."""
    later = [num for answer in answers for _, num in answer.arrivals[1:]]
    return sum(later) / len(later) if later else 1.0


def passes_saved(answers: Sequence[Answer]) -> float:
    """Return the share of target-only decoding's passes (one a token) that were not needed."""
    num_tokens = sum(num for answer in answers for _, num in answer.arrivals)
    return 1 - sum(len(answer.arrivals) for answer in answers) / num_tokens


def shares(answers: Iterable[Answer]) -> dict[str, float]:
    """Return each part of the time as a share of the whole; what no part names is "rest"."""
    timed = [answer.times_ms for answer in answers if answer.times_ms]
    if not timed:
        return {}
    total_ms = sum(times["total"] for times in timed)
    found = {part: sum(times[part] for times in timed) / total_ms for part in PARTS}
    return {**found, "rest": 1 - sum(found.values())}


def ratios(played: Sequence[Played], base: Sequence[Played]) -> Spread:
    """Return speeds over a base's, repeat by repeat; a repeat that only one played is left out."""
    return Spread.of(
        tokens_per_s(ours) / tokens_per_s(theirs)
        for ours, theirs in zip(played, base, strict=False)
    )


def percentile(values: Iterable[float], percent: float) -> float:
    """Return the smallest value that so many percent do not exceed; nan of nothing."""
    some = sorted(values)
    if not some:
        return math.nan
    return some[max(math.ceil(percent / 100 * len(some)), 1) - 1]
