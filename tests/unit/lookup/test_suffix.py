"""Suffix matching against a search that reads everything."""

import random
from collections import Counter

import pytest

from outrider.lookup.suffix import ANCHOR, MAX_MATCH, SaltedTexts, SharedTexts, SuffixIndex


def oracle(
    own: list[int], texts: list[list[int]], count: int, *, min_probability: float
) -> list[tuple[tuple[int, ...], float, int]]:
    """Every continuation that a match of some length gives, with score and length."""
    found = []
    for sources in ([(own, True)], [(text, False) for text in texts]):
        for length in range(ANCHOR, min(MAX_MATCH, len(own)) + 1):
            ending = own[len(own) - length :]
            places = [
                (text, end, is_own)
                for text, is_own in sources
                for end in range(length, len(text) + 1)
                if text[end - length : end] == ending and not (is_own and end == len(own))
            ]
            ids: list[int] = []
            probability, score = 1.0, 0.0
            while places and len(ids) < count:
                nexts = []
                for text, end, is_own in places:
                    full = text + ids if is_own else text
                    at = end + len(ids)
                    nexts.append(full[at] if at < len(full) else None)
                counts = Counter(i for i in nexts if i is not None)
                if not counts:
                    break
                best = max(counts.values())
                # Ties go to the latest place of the latest text.
                token_id = next(i for i in reversed(nexts) if i is not None and counts[i] == best)
                probability *= best / len(places)
                if probability < min_probability:
                    break
                ids.append(token_id)
                score += probability
                places = [p for p, i in zip(places, nexts, strict=True) if i == token_id]
            found.append((tuple(ids), score, length))
    return found


@pytest.mark.parametrize("seed", range(40))
def test_has_the_best_score_of_all_matches_through_any_extends_and_truncates(seed):
    rng = random.Random(seed)
    shared = SharedTexts(10_000)
    index = SuffixIndex(shared)
    own: list[int] = []
    texts: list[list[int]] = []
    alphabet = rng.choice([2, 3, 8])
    for _ in range(20):
        if rng.random() < 0.3:
            own = own[: rng.randint(0, len(own))]
            index.truncate(len(own))
        if rng.random() < 0.3:
            texts.append([rng.randrange(alphabet) for _ in range(rng.randint(1, 10))])
            shared.add(texts[-1])
        new = [rng.randrange(alphabet) for _ in range(rng.randint(0, 5))]
        own += new
        index.extend(new)
        after = [rng.randrange(alphabet) for _ in range(rng.randint(0, 3))]
        count = rng.randint(0, 6)
        match = index.match(count, after=after)
        wanted = oracle(own + after, texts, count, min_probability=index.min_probability)
        best = max((score for _, score, _ in wanted), default=0.0)
        assert match.score == pytest.approx(best)
        if match.token_ids:
            assert any(
                ids == match.token_ids and score == pytest.approx(match.score)
                for ids, score, _ in wanted
            )
        assert index.tail(0) == own


def test_a_period_goes_on_beyond_the_end():
    index = SuffixIndex()
    index.extend([7, 1, 2, 3, 1, 2])
    assert index.propose(5) == [3, 1, 2, 3, 1]


def test_the_more_frequent_continuation_wins_over_the_latest():
    index = SuffixIndex()
    index.extend([1, 2, 3, 9, 1, 2, 3, 8, 1, 2, 4, 7, 1, 2])
    match = index.match(1)
    assert match.token_ids == (3,)
    assert match.score == pytest.approx(2 / 3)


def test_finished_outputs_of_the_same_salt_are_found_and_others_never():
    texts = SaltedTexts()
    texts.of("a").add([5, 6, 7, 8])
    for salt, proposed in (("a", [7, 8]), ("b", [])):
        index = SuffixIndex(texts.of(salt))
        index.extend([5, 6])
        assert index.propose(4) == proposed


def test_no_copy_runs_from_one_text_into_the_next():
    shared = SharedTexts(100)
    shared.add([1, 2])
    shared.add([3, 4])
    index = SuffixIndex(shared)
    index.extend([1, 2])
    assert index.propose(4) == []


def test_memory_is_bounded():
    shared = SharedTexts(max_tokens=50)
    for start in range(100):
        shared.add(range(start * 7, start * 7 + 7))
    assert shared.text.num_kept <= 50
    assert sum(len(ends) for ends in shared.text._ends.values()) <= 50
    shared.add(range(10_000, 10_500))
    assert shared.text.num_kept <= 50
    index = SuffixIndex(shared)
    index.extend([10_470, 10_471])
    assert index.propose(2) == [10_472, 10_473]

    texts = SaltedTexts(max_tokens_per_salt=10, max_tokens=330)
    for salt in "abcdef":
        texts.of(salt).add([1, 2, 3])
    assert len(texts) <= 4
    index = SuffixIndex(texts.of("a"))
    index.extend([1, 2])
    assert index.propose(1) == []


def test_what_may_follow_is_named_by_the_longest_match_then_by_count():
    index = SuffixIndex()
    index.extend([9, 1, 2, 5, 8, 1, 2, 6, 7, 1, 2, 6, 9, 1, 2])
    assert index.following(4) == [5, 6]  # 9 1 2 goes before 1 2
    assert index.following(1) == [5]
    assert index.following(4, after=[6, 7, 1, 2]) == [6, 5]
    assert index.following(4, after=[30, 31]) == []
    assert len(index) == 15


def test_what_followed_in_other_texts_counts_too():
    shared = SharedTexts(100)
    shared.add([1, 2, 3])
    shared.add([1, 2])  # the boundary behind it is no token
    index = SuffixIndex(shared)
    index.extend([1, 2, 4, 1, 2])
    assert set(index.following(4)) == {3, 4}
