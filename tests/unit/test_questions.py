"""Questions of a file: what is read, and what is refused by line."""

import pytest

from outrider.errors import InvalidField
from outrider.questions import OWN, Question, load_questions, read_questions, spread


def test_lines_of_every_kind(tmp_path):
    path = tmp_path / "questions.jsonl"
    path.write_text(
        '{"prompt": "One?", "category": "a", "answer": 7}\n\n'
        '{"user": "Two?"}\n'
        '{"turns": ["Three?", "More?"], "category": "b"}\n'
    )
    expected = [Question("a", "One?", "7"), Question("other", "Two?"), Question("b", "Three?")]
    assert read_questions(path) == expected


@pytest.mark.parametrize("line", ["{", "[]", "{}", '{"turns": []}', '{"prompt": " "}'])
def test_other_lines_are_refused_by_number(tmp_path, line):
    path = tmp_path / "questions.jsonl"
    path.write_text(f'{{"prompt": "One?"}}\n{line}\n')
    with pytest.raises(InvalidField, match=r"questions\.jsonl:2"):
        read_questions(path)


def test_a_named_file_must_be_there(tmp_path, monkeypatch):
    monkeypatch.setenv("OUTRIDER_QUESTIONS", str(tmp_path / "none"))
    with pytest.raises(FileNotFoundError, match="OUTRIDER_QUESTIONS"):
        load_questions(1)


def test_categories_take_turns():
    found = spread(OWN, 15)
    assert [each.category for each in found[:12]] == [each.category for each in OWN]
    assert found[12:] == found[:3]
