"""Corpora: what is read, what is held out, and what is refused by line."""

import json
import lzma

import pytest

from outrider.errors import InvalidField
from outrider.training.corpus import Example, read_corpus, read_questions, read_user_messages


def encode(user: str) -> list[int]:
    return [1, *map(ord, user)]


def write(path, rows):
    path.write_text("\n".join(json.dumps(row) for row in rows) + "\n")
    return path


def row(user, ids=(4, 5, 2), temperature=0.0):
    return {"user": user, "response_ids": list(ids), "temperature": temperature}


def read(*paths, **options):
    options = {"vocab_size": 64, "max_length": 100, **options}
    return read_corpus(list(paths), encode, **options)


def test_reads_plain_and_compressed_files_alike(tmp_path):
    rows = [row(f"message {i}", temperature=i % 2 / 2) for i in range(200)]
    plain = write(tmp_path / "a.jsonl", rows)
    packed = tmp_path / "a.jsonl.xz"
    packed.write_bytes(lzma.compress(plain.read_bytes()))
    corpus = read(plain)
    assert corpus == read(packed)
    assert len(corpus.training) + len(corpus.held_out) == 200
    example = next(e for e in corpus.training if e.is_greedy)
    assert example.response_ids == (4, 5, 2)
    assert example.prompt_ids[0] == 1
    assert 0 < len(corpus.held_out) < 30


def test_a_message_is_never_on_both_sides(tmp_path):
    rows = [row(f"message  {i % 200}", ids=(i % 60 + 1, 2)) for i in range(600)]
    rows += [row(f"Message {i}") for i in range(200)]
    corpus = read(write(tmp_path / "a.jsonl", rows))

    def messages(examples: tuple[Example, ...]) -> set[str]:
        """Case and spaces make no other message; nor does another answer."""
        texts = ("".join(map(chr, each.prompt_ids[1:])) for each in examples)
        return {" ".join(text.lower().split()) for text in texts}

    held_out = messages(corpus.held_out)
    assert held_out
    assert len(held_out) * 4 == len(corpus.held_out)
    assert not messages(corpus.training) & held_out


def test_questions_to_measure_on_are_left_out_and_counted(tmp_path):
    question = "What gas do plants take from the air, and what do they give back to it?"
    rows = [row("hello"), row(question.upper()), row(f"Please answer: {question} Thanks!")]
    rows += [row("what gas do plants take"), row("Hi"), row("hi there"), row("the second turn")]
    questions = [{"turns": [question, "And the second turn?"]}, {"turns": ["hi"]}]
    excluded = write(tmp_path / "q.jsonl", questions)
    assert read_user_messages(excluded) == [question, "hi"]
    messages = read_questions(excluded)
    assert messages == [question, "And the second turn?", "hi"]
    corpus = read(write(tmp_path / "a.jsonl", rows), excluded=messages, max_length=1000)
    # The question itself, one around it, a part of it, a greeting, and a part of a later turn.
    assert corpus.num_excluded == 5
    assert len(corpus.training) + len(corpus.held_out) == 2


def test_long_examples_are_left_out_and_counted(tmp_path):
    rows = [row("x" * 10), row("x" * 99)]
    corpus = read(write(tmp_path / "a.jsonl", rows))
    assert corpus.num_too_long == 1


@pytest.mark.parametrize(
    ("line", "word"),
    [
        ("{", "no JSON"),
        ("[]", "JSON object"),
        ('{"response_ids": [1]}', "user"),
        ('{"user": "a"}', "response_ids"),
        ('{"user": "a", "response_ids": []}', "response_ids"),
        ('{"user": "a", "response_ids": [64]}', "64"),
        ('{"user": "a", "response_ids": ["a"]}', "'a'"),
    ],
)
def test_a_bad_line_is_named(tmp_path, line, word):
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps(row("fine")) + "\n\n" + line + "\n")
    with pytest.raises(InvalidField, match=f"a.jsonl:3: .*{word}"):
        read(path)
