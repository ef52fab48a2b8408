"""Questions to measure on: a file's, Spec-Bench's where it is at hand, else a few of our own.

Spec-Bench's file (Xia et al. 2024, arXiv:2401.07851) is not part of this repository;
OUTRIDER_QUESTIONS names it.
"""

import json
import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from outrider.errors import InvalidField

VARIABLE = "OUTRIDER_QUESTIONS"
DEFAULT_FILE = Path("../shared/data/spec_bench_dev.jsonl")
OTHER = "other"
STORY = (
    "The harbour of the small town freezes every January. In 1893 the ice was so thick that the "
    "baker drove his cart across the bay to sell bread on the island. The islanders paid with "
    "smoked fish. When the thaw came early the baker had to stay until April, and he taught the "
    "children of the island to read."
)


@dataclass(frozen=True, slots=True)
class Question:
    """A first user message; ``answer`` is the right one where it is known."""

    category: str
    text: str
    answer: str = ""


OWN = (
    Question("summarization", f"Summarise in two sentences: {STORY}"),
    Question("qa", "Which gas do plants take from the air, and what do they give back?"),
    Question(
        "math_reasoning", "A box holds 12 eggs. How many boxes are needed for 150 eggs?", "13"
    ),
    Question("translation", "Translate to German: The library opens at nine in the morning."),
    Question("rag", f"{STORY}\n\nUsing only this text: how did the islanders pay for the bread?"),
    Question("coding", "Write a Python function that reverses the words of a sentence."),
    Question("writing", "Write a short letter that invites a friend to a picnic by the lake."),
    Question("reasoning", "If all roses are flowers and some flowers fade, do all roses fade?"),
    Question("extraction", f"List every food that this text names: {STORY}"),
    Question("humanities", "Why did many early cities grow beside rivers?"),
    Question("stem", "What is the difference between speed and acceleration?"),
    Question("roleplay", "You are a lighthouse keeper. Describe your evening in five sentences."),
)


def load_questions(num_questions: int, *, max_characters: int | None = None) -> list[Question]:
    """Return this many questions, spread over the categories, none longer than the limit.

    Raises: FileNotFoundError if OUTRIDER_QUESTIONS names a file that does not exist.
    """
    path = known_file()
    questions = list(OWN) if path is None else read_questions(path)
    if max_characters is not None:
        questions = [each for each in questions if len(each.text) <= max_characters]
    return spread(questions, num_questions)


def known_file() -> Path | None:
    """Return the file of questions that OUTRIDER_QUESTIONS names, or the usual one, if it is there.

    Raises: FileNotFoundError if OUTRIDER_QUESTIONS names a file that does not exist.
    """
    named = os.environ.get(VARIABLE)
    path = Path(named) if named else DEFAULT_FILE
    if named and not path.is_file():
        raise FileNotFoundError(f"{VARIABLE}: {path} does not exist")
    return path if path.is_file() else None


def read_questions(path: Path) -> list[Question]:
    """Read one JSON object a line: the message is ``prompt``, ``user`` or the first of ``turns``.

    ``category`` and ``answer`` are optional.

    Raises: InvalidField naming file and line; OSError.
    """
    found = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if line.strip():
            found.append(_question(f"{path}:{number}", line))
    return found


def spread(questions: Sequence[Question], num_questions: int) -> list[Question]:
    """Take questions from every category in turn; short lists are repeated."""
    by_category: dict[str, list[Question]] = defaultdict(list)
    for question in questions:
        by_category[question.category].append(question)
    turns = chain.from_iterable(zip_longest(*by_category.values()))
    ordered = [question for question in turns if question is not None]
    return [ordered[i % len(ordered)] for i in range(num_questions)]


def _question(where: str, line: str) -> Question:
    try:
        row: Any = json.loads(line)
    except ValueError as error:
        raise InvalidField(where, f"no JSON: {error}") from error
    if not isinstance(row, dict):
        raise InvalidField(where, "must be a JSON object")
    turns = row.get("turns")
    first = turns[0] if isinstance(turns, list) and turns else None
    text = row.get("prompt", row.get("user", first))
    if not isinstance(text, str) or not text.strip():
        raise InvalidField(where, "needs a text as prompt, as user or as the first of turns")
    return Question(str(row.get("category", OTHER)), text, str(row.get("answer", "")))
