"""Stop strings: against brute force, and the published bug reports."""

import random

import pytest

from outrider.text import StopMatch, StopMatcher


def run(
    stops: list[str], pieces: list[str], *, keeps_match: bool = False
) -> tuple[list[str], StopMatch | None]:
    matcher = StopMatcher(stops, keeps_match=keeps_match)
    messages = []
    for index, piece in enumerate(pieces):
        messages.append(matcher.push(piece, index))
        if matcher.match is not None:
            return messages, matcher.match
    return [*messages, matcher.flush()], None


def brute_force(stops: list[str], pieces: list[str]) -> tuple[str, StopMatch | None]:
    text = "".join(pieces)
    for end in range(1, len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                lengths = [len("".join(pieces[: i + 1])) for i in range(len(pieces))]
                index = next(i for i, length in enumerate(lengths) if length >= end)
                return text[: end - len(stop)], StopMatch(stop, index)
    return text, None


def test_stop_equals_brute_force_and_holds_back_no_more_than_needed() -> None:
    rng = random.Random(20240)
    num_matches = 0
    for _ in range(3000):
        alphabet = "ab" if rng.random() < 0.5 else "abc"
        stops = [
            "".join(rng.choices(alphabet, k=rng.randint(1, 6))) for _ in range(rng.randint(1, 4))
        ]
        pieces = [
            "".join(rng.choices(alphabet, k=rng.randint(0, 5))) for _ in range(rng.randint(0, 8))
        ]
        expected = brute_force(stops, pieces)
        messages, match = run(stops, pieces)
        assert ("".join(messages), match) == expected
        kept, kept_match = run(stops, pieces, keeps_match=True)
        assert kept_match == match, "what is kept does not change where the text ends"
        assert "".join(kept) == expected[0] + (match.stop if match else "")
        num_matches += match is not None
        matcher, told = StopMatcher(stops), ""
        for index, piece in enumerate(pieces):
            told += matcher.push(piece, index)
            if matcher.match is not None:
                break
            held = "".join(pieces[: index + 1])[len(told) :]
            suffixes = ["".join(pieces[: index + 1])[-n:] for n in range(1, 7)]
            needed = [s for s in suffixes if any(stop.startswith(s) for stop in stops)]
            assert held == max(needed, key=len, default="")
    assert num_matches > 1000


def test_result_does_not_depend_on_where_tokens_are_cut() -> None:
    rng = random.Random(7)
    for _ in range(500):
        stops = ["".join(rng.choices("ab", k=rng.randint(1, 5))) for _ in range(2)]
        text = "".join(rng.choices("abc", k=20))
        results = set()
        for _ in range(5):
            cuts = sorted(rng.sample(range(len(text) + 1), 4))
            pieces = [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]
            messages, match = run(stops, pieces)
            results.add(("".join(messages), match and match.stop))
        assert len(results) == 1


def test_case_24_no_part_of_a_stop_string_is_told_and_none_is_lost() -> None:
    pieces = ["The", " quick", " br", "own", " f", "ox", " jumps"]
    messages, match = run(["own fox"], pieces)
    assert match == StopMatch("own fox", 5)
    assert not any("own" in message for message in messages)
    assert "".join(messages) == "The quick br"
    assert run(["TRE\nAAAA"], ["A ", "TR", "E"]) == (["A ", "", "", "TRE"], None)


@pytest.mark.parametrize("offset", range(17))
def test_case_21_the_token_that_completes_the_stop_is_named(offset: int) -> None:
    text = "x" * offset + "END" + "y" * 9
    messages, match = run(["END"], list(text))
    assert "".join(messages) == "x" * offset
    assert match == StopMatch("END", offset + 2)


@pytest.mark.parametrize(
    ("stops", "pieces", "text", "stop"),
    [
        (["bcd", "c"], ["abcd"], "ab", "c"),  # complete first wins
        (["c", "abc", "bc"], ["abc"], "", "abc"),  # of those, the longest
        (["aab"], ["a", "a", "a", "b"], "a", "aab"),  # overlap with itself
        (["\n\n"], ["a\n", "\nb"], "a", "\n\n"),
        (["👍🏽"], ["ok 👍", "🏽"], "ok ", "👍🏽"),
    ],
)
def test_stop_cases(stops: list[str], pieces: list[str], text: str, stop: str) -> None:
    messages, match = run(stops, pieces)
    assert "".join(messages) == text
    assert match is not None
    assert match.stop == stop


def test_without_stop_strings_text_passes_at_once() -> None:
    assert run([], ["a", "", "b"]) == (["a", "", "b", ""], None)


def test_an_empty_stop_string_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        StopMatcher(["a", ""])
