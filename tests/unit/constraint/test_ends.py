"""Where a constrained text ends, and what can never stand in it."""

import itertools
import random
from dataclasses import replace

import pytest
from tokenizers import Tokenizer

from outrider.constraint import Constraints
from outrider.constraint.grammar import parser_limits
from outrider.constraint.parser import Parser
from outrider.errors import InvalidField
from outrider.sampling import Constraint, SamplingParams
from tests.toy import BOS
from tests.unit.constraint.walking import (
    choice,
    eos,
    grammar,
    json_object,
    opened,
    regex,
    schema,
    unpacked,
)

ANYTHING = regex(r"(?s:.*)")


def ids(tokenizer: Tokenizer, text: str) -> list[int]:
    return list(tokenizer.encode(text, add_special_tokens=False).ids)


def byte(tokenizer: Tokenizer, character: str) -> int:
    token_id = tokenizer.token_to_id(character)
    assert token_id is not None
    return token_id


def test_stop_ids_stand_where_the_text_may_end_and_there_alone_where_nothing_follows(
    toy: Tokenizer, constraints: Constraints
) -> None:
    end, other = eos(toy), toy.token_to_id(BOS)
    text = opened(constraints, choice("no", "none"), end, other)
    n, o, e = (byte(toy, each) for each in "noe")
    no = toy.token_to_id("no")
    assert unpacked(text.allowed((), ())[0], 512) == {n, no}
    rows = text.allowed([n, o, n, e], ())
    assert unpacked(rows[1], 512) == {o} | {toy.token_to_id("on")} - {None}
    assert unpacked(rows[2], 512) == {n, toy.token_to_id("ne"), end, other}
    assert unpacked(rows[3], 512) == {e}
    assert unpacked(rows[4], 512) == {end, other}
    assert text.allowed([n, o, end, n], ())[3:] == [None, None], "nothing matters behind an end"
    assert text.legal((), [n, o, end, n], ()) == [True, True, True, False]
    assert text.allowed([n, end], ())[2] is None, "no end within"


def test_a_stop_id_that_writes_something_is_no_part_of_the_text(
    toy: Tokenizer, constraints: Constraints
) -> None:
    """Ending there would cut the text short."""
    brace = byte(toy, "}")
    text = opened(constraints, schema('{"type": "object", "maxProperties": 0}'), brace)
    behind = text.behind(ids(toy, "{"))
    assert brace not in (unpacked(behind.allowed((), ())[0], 512) or ())


def test_special_tokens_stand_in_free_text_only(toy: Tokenizer, constraints: Constraints) -> None:
    end, special = eos(toy), toy.token_to_id(BOS)
    # The complement of a text allows bytes that are no text at all, as special tokens are kept.
    for constraint in (ANYTHING, grammar('start: T\nT: ~"ab"')):
        row = unpacked(opened(constraints, constraint, end).allowed((), ())[0], 512)
        assert row is not None
        assert special not in row
        assert len(row) > 100
    free = opened(constraints, choice("a", after="::"), end).allowed([special], ())
    assert unpacked(free[0], 512) == set(range(512)) - {end}
    assert unpacked(free[1], 512) == set(range(512)) - {end}


def test_ids_beyond_the_vocabulary_are_never_legal(
    toy: Tokenizer, constraints: Constraints
) -> None:
    for constraint in (ANYTHING, choice("a", after="::")):
        text = opened(constraints, constraint, eos(toy))
        assert text.legal((), [512], ()) == [False]
        assert text.legal((), [600], ()) == [False]
        with pytest.raises(InvalidField, match="id 600 at 0 of the output is not allowed"):
            text.behind([600])


def test_without_an_id_that_ends_the_text_there_is_no_constraint(
    constraints: Constraints,
) -> None:
    with pytest.raises(InvalidField, match=r"stop_token_ids: needed where a constraint is"):
        constraints.open(SamplingParams(constraint=json_object()))


def test_an_output_that_breaks_the_constraint_is_named(
    toy: Tokenizer, constraints: Constraints
) -> None:
    text = opened(constraints, regex("[0-9]+"), eos(toy))
    with pytest.raises(InvalidField, match=r"regex: id \d+ at 1 of the output is not allowed"):
        text.behind([*ids(toy, "1"), *ids(toy, "x")])
    assert text.behind([*ids(toy, "1"), eos(toy), 3]).allowed((), ()) == [None]


@pytest.fixture(scope="module")
def gappy() -> Tokenizer:
    """A vocabulary that lacks most bytes, as published ones lack some."""
    from tokenizers import decoders, pre_tokenizers
    from tokenizers.models import BPE

    tokenizer = Tokenizer(BPE({each: i for i, each in enumerate("abcdefg{}")}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<eos>"])
    return tokenizer


def test_what_the_vocabulary_cannot_write_is_refused_or_a_dead_end(gappy: Tokenizer) -> None:
    constraints, end = Constraints(gappy), eos(gappy)
    with pytest.raises(InvalidField, match="choice: no token can begin it"):
        opened(constraints, choice("x", "yz"), end)
    text = opened(constraints, choice("abxc", "ad"), end)
    a, b, d = (byte(gappy, each) for each in "abd")
    rows = text.allowed([a, b, a], ())
    assert unpacked(rows[1], 10) == {b, d}
    assert unpacked(rows[2], 10) == set(), "legal so far, and nothing goes on"
    assert rows[3] is None
    assert unpacked(text.behind([a, b]).allowed((), ())[0], 10) == set()
    assert unpacked(text.behind([a]).allowed((), ())[0], 10) == {b, d}, "and back"
    assert unpacked(text.allowed([a, d], ())[2], 10) == {end}


@pytest.mark.parametrize(
    ("constraint", "limits"),
    [
        (regex(r"(?:.|\n)*a(?:.|\n){12}b"), {"max_lexer_states": 600}),
        (grammar('start: e\ne: e e | "a" | e "a" e |'), {"max_items_in_row": 60}),
    ],
    ids=["states", "items"],
)
def test_a_text_that_becomes_too_complex_is_a_dead_end_and_spoils_no_other(
    constraint: Constraint, limits: dict[str, int], toy: Tokenizer
) -> None:
    """What parsers of a grammar share is bounded, so one text could use it up for all."""
    constraints, abc = Constraints(toy, parser_limits(**limits)), set(ids(toy, "a b c"))
    lengths = []
    for _ in range(4):
        text, rng = opened(constraints, constraint, eos(toy)), random.Random(1)
        while row := unpacked(text.allowed((), ())[0], 512):
            text = text.behind([*text.ids, rng.choice(sorted(row & abc))])
            assert len(text.ids) < 400, "no limit was met"
        lengths.append(len(text.ids))
    assert lengths[0] >= lengths[1] == lengths[2] == lengths[3] > 10


def test_a_text_whose_tokens_take_too_long_to_judge_is_a_dead_end(
    toy: Tokenizer, constraints: Constraints
) -> None:
    """Before that, drafts are made without; the library has no limit that would see it."""
    text, z = opened(constraints, regex("z*"), eos(toy)), byte(toy, "z")
    cost = 0.0
    now = itertools.count()

    def clock() -> float:
        """Asked before and behind an answer."""
        return cost if next(now) % 2 else 0.0

    slow = replace(text, parser=Parser(text.grammar, clock=clock))
    both = {z, eos(toy)}
    cost = 9.0  # once, and again, but not three times in a row
    for _ in range(2):
        for _ in range(2):
            assert unpacked(slow.allowed((), ())[0], 512) == both
        cost = 0.0
        assert slow.legal((), [z, 0], ()) == [True, False]
        assert unpacked(slow.after([z]), 512) == both
        cost = 9.0
    cost = 0.06
    for _ in range(3):
        assert unpacked(slow.allowed((), ())[0], 512) == both
    assert slow.legal((), [z, 0], ()) == [True, True], "too slow for drafts"
    assert slow.after([z]) is None
    cost = 0.3
    for _ in range(3):
        assert unpacked(slow.allowed((), ())[0], 512) == both
    assert unpacked(slow.allowed((), ())[0], 512) == set()
    with pytest.raises(InvalidField, match="regex: one token takes 0.30 s to judge"):
        slow.behind([z])
    assert unpacked(slow.anew().allowed((), ())[0], 512) == both
