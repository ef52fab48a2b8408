"""What a constraint may be written as, and what is said of one that is wrong."""

import json
import time

import jsonschema
import pytest
from tokenizers import Tokenizer, decoders
from tokenizers.models import WordLevel

from outrider.constraint import ConstrainedText, Constraints
from outrider.constraint.vocabulary import Vocabulary
from outrider.errors import InvalidField
from outrider.sampling import Constraint
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


def satisfies(text: ConstrainedText, output: str, tokenizer: Tokenizer) -> bool:
    """Whether an output may be said, and ended there."""
    ids = tokenizer.encode(output, add_special_tokens=False).ids
    legal = text.legal((), [*ids, eos(tokenizer)], ())
    return all(legal)


@pytest.mark.parametrize(
    ("constraint", "legal", "illegal"),
    [
        (choice('a"b\\', "é\n", "😀", "/x/", "%json"), ['a"b\\', "é\n", "😀", "/x/"], ['a"b', "x"]),
        (regex(r"a/b\/c"), ["a/b/c"], ["a/b", r"a/b\/c"]),
        (regex(r"^\d{2}$"), ["42", "٣٤"], ["4", "423", "^42$"]),
        (regex(r"^a|b\$$"), ["a", "b$"], ["b", "ab$"]),
        (regex(r"a\\$"), ["a\\"], ["a"]),
        (regex("a\nb"), ["a\nb"], ["a b"]),
        (regex('"#//x'), ['"#//x'], ['"']),
        (regex(r"(?i)yes|no"), ["YES", "nO"], ["y"]),
        (regex("^$"), [""], ["a"]),
        (json_object(), ['{"a": [1, null]}', "{}", "{\n}"], ["[]", "1", '{"a": 1}x', " {}"]),
        (schema("true"), ["[]", "1e5", '"x"'], ["", "nul"]),
        (schema('{"enum": ["a", 1, {"b": null}]}'), ['"a"', "1", '{"b":null}'], ['"b"', "2"]),
        (
            schema('{"type": "string", "pattern": "^[a-c]+$", "maxLength": 3}'),
            ['"abc"'],
            ['"abca"', '"d"', '""'],
        ),
        (
            schema('{"type": "object", "x-guidance": {"whitespace_flexible": false}}'),
            ['{"a":1}'],
            ['{"a": 1}'],
        ),
        (
            grammar('start: term ("+" term)* // sum\nterm: NUM | "(" start ")"\nNUM: /[0-9]+/\n'),
            ["1+(2+3)+44", "7"],
            ["1+", "(1"],
        ),
        (
            grammar('start: "<a>" x | "[stop]: <b>"\nx: /<[a-z]>/ # <c>\n'),
            ["<a><z>", "[stop]: <b>"],
            ["<a>"],
        ),
        (
            grammar('root ::= term ("+" term)*\nterm ::= [0-9]+ | "(" root ")" # GBNF'),
            ["1+(2+3)+44"],
            ["1+"],
        ),
    ],
)
def test_notations(
    constraint: Constraint,
    legal: list[str],
    illegal: list[str],
    toy: Tokenizer,
    constraints: Constraints,
) -> None:
    text = opened(constraints, constraint, eos(toy))
    for output in legal:
        assert satisfies(text, output, toy), output
    for output in illegal:
        assert not satisfies(text, output, toy), output


@pytest.mark.parametrize(
    ("constraint", "message"),
    [
        (schema("{"), "json_schema: is no JSON: Expecting property name"),
        (schema("NaN"), "json_schema: is no JSON: NaN is no number of JSON"),
        (schema("3"), "json_schema: 3: a schema is an object or true"),
        (schema("false"), "json_schema: false: nothing satisfies it"),
        (schema('{"type": "objekt"}'), "json_schema: Invalid type: objekt"),
        (schema('{"type": "array", "uniqueItems": true}'), "json_schema: Unimplemented keys"),
        (schema('{"$ref": "http://127.0.0.1:1/x"}'), "json_schema: Resource 'http"),
        (schema('{"type": "integer", "minimum": 5, "maximum": 3}'), "json_schema: Unsatisfiable"),
        (schema('{"x-guidance": {"item_separator": ";"}}'), "x-guidance: item_separator: only"),
        (schema('{"x-guidance": 1}'), "x-guidance: must be an object"),
        (schema("[" * 5000), "json_schema: is no JSON"),
        (
            schema(json.dumps({"properties": {f"p{i}": {} for i in range(5_000)}})),
            "json_schema: grammar size",
        ),
        (schema('{"items":' * 300 + "{}" + "}" * 300), "json_schema: .*recursion limit"),
        (regex("a("), "regex: unclosed group"),
        (regex(r"(a)\1"), "regex: backreferences are not supported"),
        (regex("(?=a)b"), "regex: look-around"),
        (regex("a\\"), "regex: "),
        (grammar("start: foo"), r'grammar: at 1\(8\): unknown name: "foo"'),
        (grammar("hello world !!"), "grammar: "),
        (grammar('start: "a" <|im_end|>'), r"grammar: <\|im_end\|>: special tokens"),
        (grammar("start: <[5]>"), r"grammar: <\[5\]>: special tokens"),
        (grammar('start: a "x"\na[stop="b"]: /.*/'), "grammar: stop: this option"),
        (grammar('start: a "x"\na[lazy, max_tokens=2]: /.*/'), "grammar: max_tokens: this"),
        (grammar("root ::= ["), "grammar: is no GBNF"),
    ],
)
def test_what_is_wrong_is_named(
    constraint: Constraint, message: str, toy: Tokenizer, constraints: Constraints
) -> None:
    with pytest.raises(InvalidField, match=rf"^sampling_params\..*{message}") as error:
        opened(constraints, constraint, eos(toy))
    assert len(str(error.value)) < 420


HOSTILE = {
    "states": regex(r"(?:.|\n)*a(?:.|\n){200}b"),
    "repeats": regex(r"((((a|b)*a(a|b){20})+c?)*){50}"),
    "large repeats": regex(r"(.{1000}){1000}"),
    "powers": schema(
        json.dumps(
            {
                "allOf": [
                    {"anyOf": [{"required": [f"k{i}_{j}"]} for j in range(4)]} for i in range(9)
                ],
                "type": "object",
            }
        )
    ),
    "long": regex("(ab?c*|d)" * 25_000),
    "many": schema(json.dumps({"properties": {f"p{i}": {"type": "string"} for i in range(5_000)}})),
    "ambiguous": grammar('start: e\ne: e e | "a" | e "a" e |'),
    "endless": grammar('start: "a" start'),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_constraints_end_soon(name: str, toy: Tokenizer, constraints: Constraints) -> None:
    """Refused, a dead end or served, in bounded time."""
    began = time.process_time()
    try:
        text = opened(constraints, HOSTILE[name], eos(toy))
        for _ in range(20):
            row = sorted(unpacked(text.allowed((), ())[0], 512) or ())
            text = text.behind([*text.ids, *row[:1]])
    except InvalidField:
        pass
    assert time.process_time() - began < 5, "below 1 on a machine that has nothing else to do"


def test_what_a_schema_allows_satisfies_it(toy: Tokenizer, constraints: Constraints) -> None:
    """Values of every kind against another reader of the same schema, both ways."""
    written = {
        "type": "object",
        "properties": {
            "n": {"type": "number", "multipleOf": 0.5, "maximum": 10},
            "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "minItems": 1, "maxItems": 2},
            "when": {"type": "string", "format": "date"},
            "next": {"anyOf": [{"type": "null"}, {"$ref": "#"}]},
        },
        "required": ["n", "tags"],
        "additionalProperties": False,
    }
    text = opened(constraints, schema(json.dumps(written)), eos(toy))
    checker = jsonschema.Draft202012Validator(
        written, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    )
    values = [
        {"n": 1.5, "tags": ["a"]},
        {"n": 1.25, "tags": ["a"]},
        {"n": 11, "tags": ["a"]},
        {"n": 1, "tags": []},
        {"n": 1, "tags": ["a", "b", "a"]},
        {"n": -3, "tags": ["b"], "when": "2024-02-29"},
        {"n": -3, "tags": ["b"], "when": "2024-13-29"},
        {"n": 0, "tags": ["a"], "next": {"n": 0, "tags": ["a"], "next": None}},
        {"n": 0, "tags": ["a"], "next": {"n": 0}},
        {"n": 0, "tags": ["a"], "other": 1},
        {"tags": ["a"]},
    ]
    assert len({checker.is_valid(value) for value in values}) == 2
    for value in values:
        assert satisfies(text, json.dumps(value), toy) == checker.is_valid(value), value


def test_tokenizers_that_cannot_be_constrained_are_named() -> None:
    words = Tokenizer(WordLevel({"a": 0, "b": 1, "<eos>": 2}, unk_token="b"))
    with pytest.raises(InvalidField, match="json_object: not possible with the tokenizer of this"):
        opened(Constraints(words), json_object(), 2)
    gaps = Tokenizer(WordLevel({"a": 0, "b": 1, "<eos>": 7}, unk_token="b"))
    gaps.decoder = decoders.ByteLevel()
    with pytest.raises(InvalidField, match="the ids of its tokens have gaps"):
        opened(Constraints(gaps), json_object(), 7)


def test_what_tokens_write_is_what_they_are_decoded_to(
    toy: Tokenizer, byte_level: Tokenizer, metaspace: Tokenizer
) -> None:
    for tokenizer in (toy, byte_level, metaspace):
        vocabulary = Vocabulary.of(tokenizer)
        text = "x naïve 你好 is 😀 the quick"
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        assert b"".join(vocabulary.texts[i] for i in ids).decode().strip() == text


def test_compiled_constraints_are_kept_and_bounded(toy: Tokenizer) -> None:
    constraints = Constraints(toy)
    first = opened(constraints, choice("a"), eos(toy))
    assert opened(constraints, choice("a"), eos(toy)).grammar is first.grammar
    for index in range(40):
        opened(constraints, choice(f"a{index}"), eos(toy))
    assert opened(constraints, choice("a"), eos(toy)).grammar is not first.grammar
    assert len(constraints._kept) == 32
