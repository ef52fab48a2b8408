"""Structured output: what the text of a request must be, token by token."""

from outrider.constraint.constraints import Constraints
from outrider.constraint.text import ConstrainedText

__all__ = ["ConstrainedText", "Constraints"]
