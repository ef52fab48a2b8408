"""What each view finds in answers that were made up for it."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from outrider.audit.acceptance import acceptance_view, by_position
from outrider.audit.accuracy import Arm, accuracy_view
from outrider.audit.asking import Ask
from outrider.audit.divergence import divergence_view, jensen_shannon, kullback_leibler
from outrider.audit.equality import Gaps, compare, equality_view, tie_limit
from outrider.audit.intervals import Interval, difference, share
from outrider.audit.latency import latency_view
from outrider.audit.plan import POLICY, TARGET_ONLY, Tolerances, Way
from outrider.audit.view import Verdict
from tests.unit.audit.answers import answer

FORCED = Way("ngram", False, ("ngram",), 4)
TOLERANCES = Tolerances()


class Margins:
    """Takes the place of the one who asks for margins."""

    def __init__(self, margin: float) -> None:
        self.value = margin
        self.asked: list[Sequence[int]] = []

    async def margin(self, ask: Ask, output_ids: Sequence[int]) -> float:
        self.asked.append(tuple(output_ids))
        return self.value


async def equality(*, margin: float, limit: float, num_drafted: int = 9, same: bool = False):
    asker = Margins(margin)
    plain = [answer([1, 2, 3, 4]), answer([5, 6])]
    others = [
        answer([1, 2, 3, 4] if same else [1, 2, 9, 4], way=FORCED, num_drafted=num_drafted),
        answer([5, 6], way=FORCED),
    ]
    compared = await compare(asker, plain, others, limit)  # type: ignore[arg-type]
    return equality_view("greedy", "", [compared], limit=limit, confidence=0.99), asker


async def test_a_difference_fails_and_is_named():
    view, asker = await equality(margin=0.4, limit=0.1)
    assert view.verdict is Verdict.FAIL
    assert asker.asked == [(1, 2)]
    assert "with ngram on prompt 0, at output token 2" in view.finding
    assert view.data["ways"][0]["differences"] == (
        {"way": "ngram", "prompt": 0, "position": 2, "margin": 0.4, "is_tie": False},
    )


async def test_a_tie_within_declared_numerics_passes():
    view, _ = await equality(margin=0.05, limit=0.1)
    assert view.verdict is Verdict.PASS
    assert "but for 1 ties" in view.finding


async def test_where_rows_are_invariant_there_are_no_ties():
    assert tie_limit(row_invariant=True, temperature=1.0) == 0
    assert tie_limit(row_invariant=False, temperature=0.5) == 0.2
    view, _ = await equality(margin=0.0, limit=0.0)
    assert view.verdict is Verdict.FAIL


async def test_without_drafts_nothing_was_tested():
    view, _ = await equality(margin=1.0, limit=0.0, num_drafted=0, same=True)
    assert view.verdict is Verdict.NOT_RUN
    assert "nothing was drafted by ngram" in view.finding
    view, _ = await equality(margin=1.0, limit=0.0, num_drafted=0)
    assert view.verdict is Verdict.FAIL, "a difference is one whatever was drafted"


async def test_tokens_that_the_reference_does_not_like_fail():
    compared = await compare(Margins(0.0), [answer([1])], [answer([1], way=POLICY)], 0.0)  # type: ignore[arg-type]
    seen = [Gaps("policy", 1, 1, 2.5)]
    view = equality_view(
        "greedy", "", [compared], limit=0.0, confidence=0.99, seen=seen, max_gap=1.0
    )
    assert view.verdict is Verdict.FAIL
    assert "2.50 logits too low" in view.finding


def samples(rng: np.random.Generator, law: Sequence[float], num: int, way: Way = TARGET_ONLY):
    return [
        answer(rng.choice(len(law), size=60, p=law).tolist(), way=way, prompt=prompt)
        for prompt in range(10)
        for _ in range(num)
    ]


def test_samples_of_one_law_are_no_farther_apart_than_from_themselves():
    rng, law = np.random.default_rng(0), [0.4, 0.3, 0.2, 0.1]
    own, theirs = samples(rng, law, 8), samples(rng, law, 4, FORCED)
    view = divergence_view(own, {"ngram": theirs}, TOLERANCES, seed=0)
    assert view.verdict is Verdict.PASS, view.finding
    assert len(view.data["excesses"]) == 3


def test_samples_of_another_law_are():
    rng, law = np.random.default_rng(0), [0.4, 0.3, 0.2, 0.1]
    own, theirs = samples(rng, law, 8), samples(rng, law[::-1], 4, FORCED)
    view = divergence_view(own, {"ngram": theirs}, TOLERANCES, seed=0)
    assert view.verdict is Verdict.FAIL
    assert "an excess of" in view.finding
    assert all(each["excess"]["low"] > 0 for each in view.data["excesses"])


def test_too_few_samples_say_nothing():
    rng, law = np.random.default_rng(0), np.full(4, 1 / 4)
    own, theirs = samples(rng, law, 2), samples(rng, law, 1, FORCED)
    view = divergence_view(own[:4], {"ngram": theirs[:2]}, TOLERANCES, seed=0)
    assert view.verdict is Verdict.NOT_RUN
    assert "8 prompts" in view.finding
    strict = replace(TOLERANCES, max_kl_excess=0.001)
    view = divergence_view(own, {"ngram": theirs}, strict, seed=0)
    assert view.verdict is Verdict.NOT_RUN
    assert "too few samples to tell" in view.finding


def test_samples_that_share_nothing_say_nothing():
    rng, law = np.random.default_rng(0), np.full(10**6, 1e-6)
    own, theirs = samples(rng, law, 2), samples(rng, law, 1, FORCED)
    view = divergence_view(own, {"ngram": theirs}, TOLERANCES, seed=0)
    assert view.verdict is Verdict.NOT_RUN
    assert "share hardly any" in view.finding


def test_divergences():
    one, other = np.array([3.0, 1.0, 0.0]), np.array([0.0, 0.0, 4.0])
    assert jensen_shannon(one, other) == pytest.approx(np.log(2))
    assert jensen_shannon(one, one) == kullback_leibler(one, one) == 0
    p, q = np.array([3.5, 1.5, 0.5]) / 5.5, np.array([0.5, 0.5, 4.5]) / 5.5
    assert kullback_leibler(one, other) == pytest.approx((p * np.log(p / q)).sum())


def test_receipts_must_say_what_was_streamed():
    good = answer([1, 2, 3], way=FORCED, accepted=[2, 0, 1], num_drafted=12)
    view = acceptance_view({"ngram": [good]}, 0.99)
    assert view.verdict is Verdict.PASS
    assert view.data["ngram"]["mean_acceptance_length"] == 2
    bad = replace(good, accepted=(2, 1, 1))
    view = acceptance_view({"ngram": [good, bad]}, 0.99)
    assert view.verdict is Verdict.FAIL
    assert "1 of 2 receipts" in view.finding
    assert acceptance_view({"target-only": [answer([1])]}, 0.99).verdict is Verdict.NOT_RUN


def test_acceptance_by_position():
    found = by_position([answer([], accepted=[0, 1, 3]), answer([], accepted=[3])], 0.99)
    assert [each.value for each in found] == [0.75, 0.5, 0.5]
    assert all(each.low < each.value < each.high for each in found)


def latencies(per_token_ms: float) -> dict:
    def some(way: Way, ms: float) -> list:
        return [
            answer(range(11), way=way, prompt=i, first_ms=50, total_ms=50 + 10 * (ms + i % 3))
            for i in range(9)
        ]

    return {each.name: some(each, ms) for each, ms in ((TARGET_ONLY, 20), (POLICY, per_token_ms))}


def test_only_a_slowdown_that_is_shown_fails():
    slow = latency_view(latencies(40), TOLERANCES, seed=0)
    assert slow.verdict is Verdict.FAIL
    view = latency_view(latencies(22), TOLERANCES, seed=0)
    assert view.verdict is Verdict.PASS
    assert view.data["policy"]["tpot_ms"]["p50"] == pytest.approx(23)
    assert view.data["policy"]["ttft_ms"]["p99"] == 50


def arm(mode: str, plain: Sequence[str], others: Sequence[str], compared: object) -> Arm:
    return Arm(
        mode,
        [answer([len(text)], text=text) for text in plain],
        [answer([len(text)], text=text, way=FORCED) for text in others],
        compared,  # type: ignore[arg-type]
    )


async def test_accuracy_needs_equal_outputs_where_they_are_promised():
    texts = ["right", "wrong", "unknown"]
    judge = {"right": True, "wrong": False, "unknown": None}
    good = arm("greedy", texts, texts, None)
    same = await compare(Margins(9), good.plain, good.others, 0.0)  # type: ignore[arg-type]
    same = replace(same, is_vacuous=False)
    arms = [replace(good, compared=same), good]
    view = accuracy_view("arithmetic", "", arms, lambda a: judge[a.text], TOLERANCES)
    assert view.verdict is Verdict.PASS
    assert view.data["arms"][0]["target_only"]["value"] == 0.5
    assert view.data["arms"][0]["num_judged"] == 2

    bad = arm("greedy", texts, ["right", "unknown", "unknown"], None)
    differs = await compare(Margins(9), bad.plain, bad.others, 0.0)  # type: ignore[arg-type]
    view = accuracy_view(
        "arithmetic", "", [replace(bad, compared=differs)], lambda a: judge[a.text], TOLERANCES
    )
    assert view.verdict is Verdict.FAIL
    assert "1 of 3 outputs differ" in view.finding


def test_accuracy_that_is_lost_beyond_chance_fails():
    worse = arm("block", ["right"] * 60, ["right"] * 20 + ["wrong"] * 40, None)
    view = accuracy_view("arithmetic", "", [worse], lambda a: a.text == "right", TOLERANCES)
    assert view.verdict is Verdict.FAIL
    by_chance = arm("block", ["right"] * 6, ["right"] * 4 + ["wrong"] * 2, None)
    view = accuracy_view("arithmetic", "", [by_chance], lambda a: a.text == "right", TOLERANCES)
    assert view.verdict is Verdict.PASS


def test_intervals_are_those_of_the_books():
    # Newcombe 1998, Statistics in Medicine 17, 857-890: method 3 and method 10, table II (a)
    one = share(56, 70, 0.95)
    assert one.low == pytest.approx(0.6918, abs=2e-3)
    gap = difference(one, share(48, 80, 0.95))
    assert (gap.low, gap.high) == pytest.approx((0.0524, 0.3339), abs=1e-4)
    assert share(0, 0, 0.95) == Interval(0.0, 0.0, 1.0)
