"""Masks along paths, against a reference that tries every id by what it writes."""

import itertools
import json
import random
from collections.abc import Iterable

import pytest
import regex as third_party_regex
from tokenizers import Tokenizer

from outrider.constraint import ConstrainedText, Constraints
from outrider.constraint.vocabulary import Vocabulary
from outrider.sampling import Constraint
from tests.unit.constraint.walking import (
    Legal,
    choice,
    eos,
    expected,
    grammar,
    json_object,
    opened,
    random_tree,
    regex,
    schema,
    unpacked,
)

CHOICES = ("maybe", "may", "you 你好", "안녕 — Ende", 'say "no"\n\\', "é", "😀👍🏽")
PATTERN = r"(?:[A-Z][a-z]{1,6}|[äöü]+|你好)-[0-9]{2}(?: (?:am|pm))?"
FINITE = {
    "type": "object",
    "properties": {
        "kind": {"enum": ["fox", "naïve 你", None]},
        "n": {"type": "integer", "minimum": -1, "maximum": 12},
        "on": {"type": "boolean"},
    },
    "required": ["kind", "n"],
    "additionalProperties": False,
    "x-guidance": {"whitespace_flexible": False},
}


def one_of(texts: Iterable[bytes]) -> Legal:
    prefixes, whole = set(), set(texts)
    for text in whole:
        prefixes |= {text[:end] for end in range(len(text) + 1)}
    return lambda text: (text in prefixes, text in whole)


def matching(pattern: str) -> Legal:
    compiled = third_party_regex.compile(pattern)

    def legal(text: bytes) -> tuple[bool, bool]:
        for cut in range(4):  # an unfinished character stands for any that begins so
            try:
                known = text[: len(text) - cut].decode()
            except UnicodeDecodeError:
                continue
            if not cut:
                whole = compiled.fullmatch(known) is not None
                return compiled.fullmatch(known, partial=True) is not None, whole
            rest = text[len(text) - cut :]
            return any(
                compiled.fullmatch(known + each, partial=True) is not None
                for each in "äöü你好éа한"
                if each.encode().startswith(rest)
            ), False
        return False, False

    return legal


def objects() -> list[bytes]:
    """Every text of FINITE."""
    kinds, numbers = ["fox", "naïve 你", None], range(-1, 13)
    found = []
    for kind, n, on in itertools.product(kinds, numbers, [None, True, False]):
        value = {"kind": kind, "n": n} | ({} if on is None else {"on": on})
        found.append(json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode())
    return found


LAWS: dict[str, tuple[Constraint, Legal]] = {
    "choice": (choice(*CHOICES), one_of(text.encode() for text in CHOICES)),
    "regex": (regex(PATTERN), matching(PATTERN)),
    "schema": (schema(json.dumps(FINITE)), one_of(objects())),
    "grammar": (
        grammar('start: pair ("," pair)~0..1\npair: NAME "=" NAME\nNAME: "ab" | "é你"'),
        one_of(
            ",".join(pairs).encode()
            for count in (1, 2)
            for pairs in itertools.product(["ab=ab", "ab=é你", "é你=ab", "é你=é你"], repeat=count)
        ),
    ),
}


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("name", ["toy", "byte_level", "metaspace"])
def test_masks_along_paths(law: str, name: str, request: pytest.FixtureRequest) -> None:
    """In trees whose nodes are legal, dead or over; the text grows and is cut back meanwhile."""
    tokenizer: Tokenizer = request.getfixturevalue(name)
    vocabulary, end = Vocabulary.of(tokenizer), eos(tokenizer)
    constraint, legal = LAWS[law]
    begin = opened(Constraints(tokenizer), constraint, end)
    rng = random.Random(f"{law} {name}")
    ids: list[int] = []
    text = begin
    for _ in range(25):
        ids = ids[: rng.randrange(len(ids) + 1)] if rng.random() < 0.3 else ids
        text = text.behind(ids)
        written = b"".join(vocabulary.texts[i] for i in ids)
        parents, nodes = random_tree(rng, 6), list[int]()
        above: list[bytes | None] = [written]
        wanted: list[set[int] | None] = [expected(vocabulary, [end], written, legal)]
        for parent in parents:
            before, options = above[parent + 1], wanted[parent + 1]
            node = rng.choice(sorted(options)) if options and rng.random() < 0.9 else 5
            nodes.append(node)
            if before is None or options is None or node not in options or node == end:
                above.append(None)
                wanted.append(None)
            else:
                above.append(before + vocabulary.texts[node])
                wanted.append(expected(vocabulary, [end], above[-1] or b"", legal))
        found = [unpacked(each, vocabulary.size) for each in text.allowed(nodes, parents)]
        assert found == wanted
        chain = [unpacked(each, vocabulary.size) for each in text.allowed(nodes[:1], ())]
        assert chain[0] == wanted[0]
        is_legal = [
            (options := wanted[parent + 1]) is not None and node in options
            for node, parent in zip(nodes, parents, strict=True)
        ]
        assert text.legal((), nodes, parents) == is_legal
        last = wanted[0]
        assert last
        following = rng.choice(sorted(last))
        ids = [] if following == end else [*ids, following]
    assert begin.allowed((), ())[0] is not None, "the first state can still be asked"


@pytest.mark.parametrize(
    "constraint",
    [
        json_object(),
        schema('{"type": "array", "items": {"$ref": "#"}, "maxItems": 3}'),
        regex(r"(?:\w+[ ,.])*"),
        json_object(after="so:"),
    ],
    ids=["object", "recursive", "words", "after"],
)
def test_any_order_of_questions_gets_the_same_answers(
    constraint: Constraint, toy: Tokenizer, constraints: Constraints
) -> None:
    """States that share a parser, asked in turn, against each text told at once to a new one."""
    rng, end = random.Random(7), eos(toy)
    begin = opened(constraints, constraint, end)
    states: list[ConstrainedText] = [begin]
    for _ in range(120):
        state = rng.choice(states[-6:])
        row = unpacked(state.allowed((), ())[0], 512)
        options = sorted((row or set()) - {end})
        if not options:
            continue
        path = [rng.choice(options)]
        states.append(state.behind([*state.ids, *path]))
        # Meanwhile somebody asks an older one, behind other tokens.
        older = rng.choice(states)
        older.after([rng.choice(options), rng.choice(options)])
    fresh = Constraints(toy)
    for state in rng.sample(states, 40):
        told_at_once = opened(fresh, constraint, end).behind(state.ids)
        assert unpacked(state.allowed((), ())[0], 512) == unpacked(
            told_at_once.allowed((), ())[0], 512
        )
    assert max(len(state.ids) for state in states) > 10
