"""Free text, the marker, and what a token writes behind it."""

import random

import pytest
from tokenizers import Tokenizer

from outrider.constraint import Constraints
from outrider.constraint.marker import Marker
from outrider.constraint.vocabulary import Vocabulary
from outrider.errors import InvalidField
from tests.toy import BOS
from tests.unit.constraint.walking import choice, eos, opened, regex, schema, unpacked


@pytest.mark.parametrize("marker", ["aab", "aaaa", "abab", "x", "é—é", "abcabd"])
def test_a_marker_is_found_however_the_text_is_cut(marker: str) -> None:
    rng = random.Random(marker)
    for _ in range(300):
        length = rng.randrange(12)
        text = "".join(rng.choice([*marker, marker, "z"]) for _ in range(length)).encode()
        begin, progress, rest = 0, 0, None
        while begin < len(text) and rest is None:
            end = begin + rng.randrange(1, 5)
            progress, rest = Marker(marker.encode()).read(progress, text[begin:end])
            begin = end
        place = text.find(marker.encode())
        assert (rest is not None) == (place >= 0)
        if rest is not None:
            assert text[: min(begin, len(text))] == text[: place + len(marker.encode())] + rest


@pytest.mark.parametrize("name", ["toy", "byte_level", "metaspace"])
@pytest.mark.parametrize("marker", ["END", "aba", "ee", "你", " ", "e q"])
def test_masks_of_free_text(name: str, marker: str, request: pytest.FixtureRequest) -> None:
    """Tried id by id: everything but stops, and what the marker must not be followed by."""
    tokenizer: Tokenizer = request.getfixturevalue(name)
    vocabulary, end = Vocabulary.of(tokenizer), eos(tokenizer)
    size, wanted = vocabulary.size, marker.encode()
    begin = opened(Constraints(tokenizer), choice("ba", "on", "uick", after=marker), end)
    rng = random.Random(f"{name} {marker}")
    ids: list[int] = []
    num_complete = 0
    for _ in range(150):
        text = begin.behind(ids)
        written = b"".join(vocabulary.texts[i] for i in ids)
        row = unpacked(text.allowed((), ())[0], size)
        assert row
        if wanted not in written:
            expected = {
                i
                for i, piece in enumerate(vocabulary.texts)
                if i != end
                and (
                    wanted not in written + piece
                    or _begins(choices=(b"ba", b"on", b"uick"), after=wanted, text=written + piece)
                )
            }
            assert row == expected
            begun = next(n for n in range(len(wanted), -1, -1) if written.endswith(wanted[:n]))
            nearer = [
                i
                for i, t in enumerate(vocabulary.texts)
                if t and (wanted[begun:].startswith(t) or t.startswith(wanted[begun:]))
            ]
            token_id = rng.choice(nearer if rng.random() < 0.8 else range(size))
            ids = [*ids, token_id] if token_id in row else ids
        else:
            num_complete += 1
            rest = written[written.find(wanted) + len(wanted) :]
            left = {c[len(rest) :] for c in (b"ba", b"on", b"uick") if c.startswith(rest)}
            pieces = {i for i, t in enumerate(vocabulary.texts) if t and _any(left, t)}
            assert row == pieces | ({end} if b"" in left else set())
            ids = [] if rng.random() < 0.5 or row == {end} else [*ids, rng.choice(sorted(row))]
        if len(ids) > 40:
            ids = []
    assert num_complete > 3


def _begins(choices: tuple[bytes, ...], after: bytes, text: bytes) -> bool:
    rest = text[text.find(after) + len(after) :]
    return any(choice.startswith(rest) for choice in choices)


def _any(left: set[bytes], piece: bytes) -> bool:
    return any(each.startswith(piece) for each in left)


def test_a_token_that_writes_the_marker_and_more(toy: Tokenizer, constraints: Constraints) -> None:
    """ "ba" completes it with its first letter; the second begins the constrained part."""
    end, ba, be = eos(toy), toy.token_to_id("ba"), toy.token_to_id("be")
    colon, a, n = (toy.token_to_id(each) for each in ":an")
    text = opened(constraints, choice("a", "an", after=":b"), end)
    free = unpacked(text.behind([colon]).allowed((), ())[0], 512)
    assert free == set(range(512)) - {end} - {
        i
        for i in range(512)
        if i != ba and (t := toy.id_to_token(i)).startswith("b") and len(t) > 1
    }
    assert be not in (free or ())
    assert unpacked(text.behind([colon, ba]).allowed((), ())[0], 512) == {n, end}
    assert text.legal((), [colon, ba, end], ()) == [True, True, True]
    assert text.legal((), [colon, be, end], ()) == [True, False, False]
    assert text.legal([colon, ba], [n, a, end], ()) == [True, False, False]
    with pytest.raises(InvalidField, match="not allowed"):
        text.behind([colon, be])


def test_the_text_does_not_end_before_the_marker(toy: Tokenizer, constraints: Constraints) -> None:
    end = eos(toy)
    text = opened(constraints, choice("a", after="::"), end)
    assert end not in (unpacked(text.allowed((), ())[0], 512) or ())
    assert text.legal((), [end], ()) == [False]


def test_only_the_first_marker_counts(toy: Tokenizer, constraints: Constraints) -> None:
    colon = toy.token_to_id(":")
    text = opened(constraints, regex(":*x", after="::"), eos(toy)).behind([colon] * 5)
    assert unpacked(text.allowed((), ())[0], 512) == {colon, toy.token_to_id("x")}


def test_special_tokens_can_be_the_marker(toy: Tokenizer, constraints: Constraints) -> None:
    """As the tokens that end a model's reasoning are in many vocabularies."""
    bos, a = toy.token_to_id(BOS), toy.token_to_id("a")
    text = opened(constraints, choice("a", after=BOS), eos(toy))
    assert unpacked(text.behind([a, bos]).allowed((), ())[0], 512) == {a}


def test_json_may_begin_with_white_space_behind_a_marker(
    toy: Tokenizer, constraints: Constraints
) -> None:
    colon, space, brace = toy.token_to_id(":"), toy.token_to_id("Ġ"), toy.token_to_id("{")
    text = opened(constraints, schema('{"type": "object"}', after=":"), eos(toy))
    assert text.legal((), [colon, space, space, brace], ()) == [True] * 4
    without = opened(constraints, schema('{"type": "object"}'), eos(toy))
    assert without.legal((), [space, brace], ()) == [False, False]
