"""Questions to measure on: Spec-Bench's where its file is at hand, else a few of our own.

The file is one JSON object a line with ``question_id``, ``category`` and ``turns`` (Xia et al.
2024, arXiv:2401.07851). It is not part of this repository; OUTRIDER_QUESTIONS names it.
"""

import json
import os
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path

VARIABLE = "OUTRIDER_QUESTIONS"
DEFAULT_FILE = Path("../shared/data/spec_bench_dev.jsonl")
STORY = (
    "The harbour of the small town freezes every January. In 1893 the ice was so thick that the "
    "baker drove his cart across the bay to sell bread on the island. The islanders paid with "
    "smoked fish. When the thaw came early the baker had to stay until April, and he taught the "
    "children of the island to read."
)


@dataclass(frozen=True, slots=True)
class Question:
    """A first user message."""

    category: str
    text: str


OWN = (
    Question("summarization", f"Summarise in two sentences: {STORY}"),
    Question("qa", "Which gas do plants take from the air, and what do they give back?"),
    Question("math_reasoning", "A box holds 12 eggs. How many boxes are needed for 150 eggs?"),
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
    named = os.environ.get(VARIABLE)
    path = Path(named) if named else DEFAULT_FILE
    if named and not path.is_file():
        raise FileNotFoundError(f"{VARIABLE}: {path} does not exist")
    questions = _read(path) if path.is_file() else list(OWN)
    if max_characters is not None:
        questions = [each for each in questions if len(each.text) <= max_characters]
    return spread(questions, num_questions)


def spread(questions: Sequence[Question], num_questions: int) -> list[Question]:
    """Take questions from every category in turn; short lists are repeated."""
    by_category: dict[str, list[Question]] = defaultdict(list)
    for question in questions:
        by_category[question.category].append(question)
    turns = chain.from_iterable(zip_longest(*by_category.values()))
    ordered = [question for question in turns if question is not None]
    return [ordered[i % len(ordered)] for i in range(num_questions)]


def _read(path: Path) -> list[Question]:
    lines = (json.loads(line) for line in path.read_text().splitlines())
    return [Question(line["category"], line["turns"][0]) for line in lines]
