"""What a mixed load must show."""

import statistics
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

import numpy as np

from bench.mixed.classes import LoadClass
from bench.mixed.replay import Answered
from outrider.packet.correctness import FAIL, NOT_RUN, PASS, Evidence
from outrider.packet.finished import Finished
from outrider.packet.latency import MEASURES, values_of
from outrider.packet.matrix import Worth

MAX_CLIENT_LAG_MS = 250.0  # of the 99th percentile: the load generator shares the machine
MIN_REQUESTS = 5
FIRST, LATER = "first token, ms", "a later token, ms"


def completed(runs: Mapping[str, Sequence[Answered]]) -> Evidence:
    """Every request of every run came to its end."""
    failed = Counter(
        each.status for answers in runs.values() for each in answers if each.status != "OK"
    )
    total = sum(map(len, runs.values()))
    told = ", ".join(f"{status} {count}" for status, count in failed.items())
    return _evidence(
        "every request is completed",
        PASS if not failed else FAIL,
        "none is refused or breaks off",
        f"{total - failed.total()} of {total} in {len(runs)} runs" + (f"; {told}" if told else ""),
    )


def enabled_are_those_that_gained(
    enabled: Collection[str], trial: Mapping[str, Worth], classes: Sequence[LoadClass]
) -> Evidence:
    """The policy enables the classes that gained in a trial; where it can be calculated which do,
    these must be they."""
    told = "; ".join(f"{name} {_gain(worth)}" for name, worth in trial.items())
    calculable = all(each.gains is not None for each in classes)
    expected = {each.name for each in classes if each.gains}
    is_right = set(enabled) == (expected if calculable else set(enabled))
    return _evidence(
        "the policy enables exactly the classes that gain",
        PASS if is_right else FAIL,
        "classes whose 95 % interval lies above 1 in a trial in which all had drafts"
        + (f"; by calculation {', '.join(sorted(expected))}" if calculable else ""),
        f"enabled: {', '.join(sorted(enabled)) or 'none'}; in the trial {told}",
    )


def others_have_no_drafts(enabled: Collection[str], requests: Sequence[Finished]) -> Evidence:
    """Classes that are not enabled verified no draft."""
    others = [each for each in requests if each.class_name not in enabled]
    num_drafts = sum(each.receipt.num_spec_steps for each in others)
    return _evidence(
        "no other class has drafts",
        PASS if not num_drafts else FAIL,
        "none",
        f"{num_drafts} drafts in {len(others)} requests",
    )


def enabled_gain(enabled: Collection[str], found: Mapping[str, Worth]) -> Evidence:
    """What the policy enables gains under the policy as well."""
    verdicts = {name: found[name].verdict for name in sorted(enabled) if name in found}
    verdict = PASS if set(verdicts.values()) <= {"gains"} and verdicts else NOT_RUN
    if "loses" in verdicts.values():
        verdict = FAIL
    told = "; ".join(f"{name} {_gain(found[name])}" for name in verdicts) or "none is enabled"
    return _evidence(
        "every enabled class gains over its control in the same run",
        verdict,
        "the 95 % interval lies above 1",
        told,
    )


def protected_is_not_delayed(
    of: LoadClass,
    requests: Sequence[Finished],
    baselines: Sequence[Sequence[Finished]],
    budget: float,
) -> Evidence:
    """Requests of the highest priority are not slower than where nobody has drafts, beyond what
    drafts of others may lengthen their passes by.

    ``baselines`` are runs before and after; how far they are apart says what the machine does.
    """
    ours = _of(requests, of)
    before = [_of(each, of) for each in baselines]
    if min(map(len, (ours, *before))) < MIN_REQUESTS:
        return _evidence("protected traffic", NOT_RUN, "", "too few requests")
    pooled = [each for side in before for each in side]
    first, later = _slowdown(ours, pooled, FIRST), _slowdown(ours, pooled, LATER)
    alone = _slowdown([each for each in ours if each.is_control] or ours, pooled, LATER)
    apart = [_slowdown(before[-1], before[0], measure) for measure in (FIRST, LATER)]
    return _evidence(
        f"protected traffic ({of.name}, priority {of.priority}) is not delayed beyond its budget",
        PASS if max(first, later) <= 1 + budget else FAIL,
        f"means of at most {1 + budget:g} times those of the runs without any drafts",
        f"first token {first:.2f}, later tokens {later:.2f} times; later tokens of its control, "
        f"which has no drafts itself, {alone:.2f} times; the run without drafts that came after "
        f"took {apart[0]:.2f} and {apart[1]:.2f} times what the one before did",
    )


def _of(requests: Sequence[Finished], of: LoadClass) -> list[Finished]:
    return [each for each in requests if each.class_name == of.name]


def _slowdown(ours: Sequence[Finished], before: Sequence[Finished], measure: str) -> float:
    means = (statistics.fmean(values_of(side, MEASURES[measure])) for side in (ours, before))
    return next(means) / next(means)


def clients_see_what_receipts_say(
    answers: Sequence[Answered], requests: Sequence[Finished]
) -> Evidence:
    """Latencies of clients and of receipts are the same."""
    receipts = {each.receipt.request_id: each.receipt for each in requests}
    pairs = [(each, receipts[each.request_id]) for each in answers if each.request_id in receipts]
    lags = [each.total_ms - receipt.total_ms for each, receipt in pairs]
    differing = [each for each, receipt in pairs if each.num_tokens != receipt.num_output_tokens]
    worst = float(np.quantile(lags, 0.99)) if lags else float("inf")
    is_right = worst <= MAX_CLIENT_LAG_MS and not differing and len(pairs) == len(answers)
    return _evidence(
        "clients see what receipts say",
        PASS if is_right else FAIL,
        f"p99 of the difference at most {MAX_CLIENT_LAG_MS:g} ms; the same numbers of tokens",
        f"{len(pairs)} of {len(answers)} requests have a receipt, p99 {worst:.1f} ms, "
        f"{len(differing)} differ in tokens",
    )


def _gain(worth: Worth) -> str:
    gain = worth.gain
    return "too few" if gain is None else f"{gain.value:.2f} ({gain.low:.2f} to {gain.high:.2f})"


def _evidence(name: str, verdict: str, tolerance: str, finding: str) -> Evidence:
    return Evidence("load", name, verdict, tolerance, finding)
