"""How far speculative samples are from target-only ones, beyond what samples differ anyway.

Two sets of target-only samples of every prompt, and one of a speculative way, of equal size, stand
side by side. What is judged is the excess: the mean divergence between the way's samples and either
target-only set, less that between the two target-only sets. If all follow one law it is 0 on
average, for every estimator of divergence and however few samples there are.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt

from outrider.audit.asking import Answer
from outrider.audit.intervals import Interval, bootstrap
from outrider.audit.plan import Tolerances
from outrider.audit.view import Table, Verdict, View, verdict_of

NAME, TITLE = "divergence", "Divergence of samples: speculative against target-only"
MIN_PROMPTS = 8  # fewer say little of how prompts differ
MOST = math.log(2)
BLIND = 0.95 * MOST  # of Jensen-Shannon: sets that share hardly anything are all equally far apart
SMOOTHING = 0.5  # added to the count of whatever occurs in either set (Krichevsky and Trofimov)

Floats = npt.NDArray[np.float64]
Counts = Counter[tuple[int, ...]]
Divergence = Callable[[Floats, Floats], float]


@dataclass(frozen=True, slots=True)
class Excess:
    """By how much a way's samples are farther off, in nats.

    ``null``: how far the target-only sets are apart, which is what samples of this size show of one
    law.
    """

    way: str
    kind: str
    excess: Interval
    null: float
    limit: float

    @property
    def is_blind(self) -> bool:
        """True if samples of one law share hardly anything, so that no excess can show."""
        return self.null >= BLIND

    @property
    def is_within(self) -> bool:
        """True if the whole interval is within the limit."""
        return not self.is_blind and self.excess.high <= self.limit

    @property
    def is_beyond(self) -> bool:
        """True if there is an excess, and it seems to be above the limit."""
        return self.excess.low > 0 and self.excess.value > self.limit


def kullback_leibler(one: Floats, other: Floats) -> float:
    """Return the divergence of smoothed counts [W] from one another, in nats."""
    p, q = one + SMOOTHING, other + SMOOTHING
    p, q = p / p.sum(), q / q.sum()
    return float((p * np.log(p / q)).sum())


def jensen_shannon(one: Floats, other: Floats) -> float:
    """Return the divergence of counts [W] in nats, at most ``MOST``."""
    p, q = one / one.sum(), other / other.sum()
    middle = (p + q) / 2
    parts = [each[each > 0] @ np.log(each[each > 0] / middle[each > 0]) for each in (p, q)]
    return float(sum(parts) / 2)


KINDS: Sequence[tuple[str, int, Divergence]] = (
    ("tokens, Kullback-Leibler", 1, kullback_leibler),
    ("bigrams, Jensen-Shannon", 2, jensen_shannon),
    ("trigrams, Jensen-Shannon", 3, jensen_shannon),
)


def divergence_view(
    target_only: Sequence[Answer],
    ways: Mapping[str, Sequence[Answer]],
    tolerances: Tolerances,
    seed: int,
) -> View:
    """Judge the samples of every way; of the target alone there are twice as many a prompt."""
    limits = (
        f"{tolerances.max_kl_excess:g} nats (tokens) and {tolerances.max_ngram_excess:g} (n-grams)"
    )
    tolerance = (
        f"the whole {tolerances.confidence:.0%} interval of every excess is at most {limits}"
    )
    if len({answer.ask.prompt.number for answer in target_only}) < MIN_PROMPTS:
        return View.not_run(NAME, TITLE, tolerance, f"needs at least {MIN_PROMPTS} prompts")
    found = [
        excess_of(way, kind, size, measure, target_only, answers, tolerances, seed)
        for way, answers in ways.items()
        for kind, size, measure in KINDS
    ]
    failed = [each for each in found if each.is_beyond]
    open_ones = [each for each in found if not each.is_within and not each.is_beyond]
    verdict = verdict_of(not failed)
    if open_ones and not failed:
        verdict = Verdict.NOT_RUN
    return View(
        name=NAME,
        title=TITLE,
        verdict=verdict,
        tolerance=tolerance,
        finding=_finding(found, failed, open_ones),
        tables=[_table(found)],
        data={"excesses": [asdict(each) for each in found]},
    )


def excess_of(
    way: str,
    kind: str,
    size: int,
    measure: Divergence,
    target_only: Sequence[Answer],
    answers: Sequence[Answer],
    tolerances: Tolerances,
    seed: int,
) -> Excess:
    """Compare the n-grams of a way's samples with two halves of the target's own."""
    excesses, nulls = [], []
    for number in sorted({answer.ask.prompt.number for answer in answers}):
        own = [answer for answer in target_only if answer.ask.prompt.number == number]
        half = len(own) // 2
        theirs = [answer for answer in answers if answer.ask.prompt.number == number]
        one, other, spec = _aligned(
            [grams(some, size) for some in (own[:half], own[half:], theirs)]
        )
        if not (one.any() and other.any() and spec.any()):
            continue  # every output was too short for an n-gram
        null = (measure(one, other) + measure(other, one)) / 2
        excesses.append((measure(spec, one) + measure(spec, other)) / 2 - null)
        nulls.append(null)
    values = np.array(excesses or [0.0])
    interval = bootstrap(values, np.mean, tolerances.confidence, seed)
    limit = tolerances.max_kl_excess if size == 1 else tolerances.max_ngram_excess
    return Excess(way, kind, interval, float(np.mean(nulls or [0.0])), limit)


def grams(answers: Sequence[Answer], size: int) -> Counts:
    """Count the n-grams of outputs."""
    ids = (answer.token_ids for answer in answers)
    return Counter(
        chain.from_iterable(zip(*(each[i:] for i in range(size)), strict=False) for each in ids)
    )


def _aligned(counts: Sequence[Counts]) -> list[Floats]:
    """Return the counts as arrays over everything that occurs in one of them."""
    known = sorted(set().union(*counts))
    return [np.array([each[gram] for gram in known], dtype=np.float64) for each in counts]


def _finding(found: Sequence[Excess], failed: Sequence[Excess], open_ones: Sequence[Excess]) -> str:
    if failed:
        worst = max(failed, key=lambda each: each.excess.high / each.limit)
        return (
            f"{worst.way}, {worst.kind}: an excess of {worst.excess.told()} nats is not within "
            f"{worst.limit:g}"
        )
    if any(each.is_blind for each in open_ones):
        return "samples of one law share hardly any n-grams: more of each prompt are needed"
    if open_ones:
        widest = max(open_ones, key=lambda each: each.excess.high / each.limit)
        return (
            f"too few samples to tell: {widest.way}, {widest.kind}, {widest.excess.told()} nats, "
            f"the limit is {widest.limit:g}"
        )
    most = max(found, key=lambda each: each.excess.high / each.limit)
    return (
        f"no way is farther from the target alone than that is from itself; closest to its limit: "
        f"{most.way}, {most.kind}, {most.excess.told()} nats"
    )


def _table(found: Sequence[Excess]) -> Table:
    headers = ("way", "of", "target-only against itself", "excess, nats", "limit")
    rows = [
        (each.way, each.kind, f"{each.null:.3f}", each.excess.told("+.4f"), f"{each.limit:g}")
        for each in found
    ]
    return Table(headers, rows)
