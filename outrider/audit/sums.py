"""Arithmetic word problems: ours have known answers, a file's may have."""

import re
from collections.abc import Sequence
from fractions import Fraction

from outrider.questions import Question

MATHS = ("math_reasoning", "math", "arithmetic")
NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?(?:/\d+)?")

OWN = tuple(
    Question("arithmetic", text, answer)
    for text, answer in (
        ("A box holds 12 eggs. How many eggs are in 5 boxes?", "60"),
        ("Mira has 15 apples and gives 6 away. How many apples are left?", "9"),
        ("A train covers 80 km in one hour. How far does it go in 3 hours?", "240"),
        ("A shirt costs 20 dollars and is sold for half of that. What is the price now?", "10"),
        ("There are 4 rows of 7 chairs. How many chairs are there?", "28"),
        ("Tom reads 25 pages a day. How many pages does he read in a week?", "175"),
        ("A baker makes 96 rolls and packs them by 8. How many packs are there?", "12"),
        ("Ana is 34. Her son is 26 years younger. How old is her son?", "8"),
        ("A tank of 200 litres is three quarters full. How many litres are in it?", "150"),
        ("Two tickets cost 18 dollars. How much do 5 tickets cost?", "45"),
        ("A field is 30 m long and 20 m wide. What is its area in square metres?", "600"),
        ("Leo had 50 stamps, lost 8 and bought 13. How many has he now?", "55"),
    )
)


def load_sums(questions: Sequence[Question], num_sums: int) -> list[Question]:
    """Return problems: those of the questions that are of arithmetic, and ours for the rest."""
    theirs = [question for question in questions if question.category in MATHS]
    both = [*theirs[: num_sums // 2], *OWN] if theirs else list(OWN)
    return both[:num_sums]


def extracted(text: str) -> Fraction | None:
    """Return what an answer comes to: its last number, or the last behind "=", ":", "is" or "are".

    >>> extracted("12 * 5 = 60 eggs in 5 boxes.")
    Fraction(60, 1)
    """
    marked = re.findall(r"(?:=|\bis\b|\bare\b|:)\s*\$?\s*(" + NUMBER.pattern + ")", text)
    found = marked or NUMBER.findall(text)
    if not found:
        return None
    try:
        return Fraction(found[-1].replace(",", ""))
    except ZeroDivisionError:
        return None


def is_right(question: Question, text: str) -> bool:
    """Return True if an answer comes to the known number."""
    return extracted(text) == Fraction(question.answer)
