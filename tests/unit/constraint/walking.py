"""Constrained texts in tests: what is allowed, and random ways through it."""

import random
from collections.abc import Callable, Sequence

import numpy as np
from tokenizers import Tokenizer

from outrider.constraint import ConstrainedText, Constraints
from outrider.constraint.vocabulary import Vocabulary
from outrider.sampling import Constraint, ConstraintKind, SamplingParams
from outrider.token_sets import Bits


def choice(*texts: str, after: str = "") -> Constraint:
    return Constraint(ConstraintKind.CHOICE, choices=texts, after=after)


def regex(text: str, after: str = "") -> Constraint:
    return Constraint(ConstraintKind.REGEX, text, after=after)


def schema(text: str, after: str = "") -> Constraint:
    return Constraint(ConstraintKind.JSON_SCHEMA, text, after=after)


def grammar(text: str, after: str = "") -> Constraint:
    return Constraint(ConstraintKind.GRAMMAR, text, after=after)


def json_object(after: str = "") -> Constraint:
    return Constraint(ConstraintKind.JSON_OBJECT, after=after)


def opened(
    constraints: Constraints, constraint: Constraint, *stop_token_ids: int
) -> ConstrainedText:
    sampling = SamplingParams(constraint=constraint, stop_token_ids=stop_token_ids)
    text = constraints.open(sampling)
    assert text is not None
    return text


def unpacked(bits: Bits | None, size: int) -> set[int] | None:
    if bits is None:
        return None
    found = np.flatnonzero(np.unpackbits(bits, bitorder="little")).tolist()
    assert all(i < size for i in found), "ids of the padding"
    return set(found)


def eos(tokenizer: Tokenizer) -> int:
    return next(
        i
        for text in ("<eos>", "<|im_end|>", "</s>")
        if (i := tokenizer.token_to_id(text)) is not None
    )


Legal = Callable[[bytes], tuple[bool, bool]]
"""Of a text: whether it can go on or end as it is, and whether it may end."""


def expected(vocabulary: Vocabulary, stops: Sequence[int], text: bytes, legal: Legal) -> set[int]:
    """What may follow, one id after the other."""
    allowed = {
        i
        for i, piece in enumerate(vocabulary.texts)
        if piece
        and i not in stops
        and not vocabulary.tokenizer.is_special_token(i)
        and legal(text + piece)[0]
    }
    return allowed | (set(stops) if legal(text)[1] else set())


def random_tree(rng: random.Random, num_nodes: int) -> list[int]:
    return [rng.randrange(-1, node) for node in range(num_nodes)]
