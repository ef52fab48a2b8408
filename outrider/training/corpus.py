"""What drafters are trained on: answers that the target itself wrote.

A corpus is one JSON object a line, plain or compressed with xz: ``user`` (the message),
``response_ids`` (the target's answer, the id that ends it included) and ``temperature`` (0 where
each id is the target's most likely one).
"""

import hashlib
import json
import lzma
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from outrider.errors import InvalidField

MIN_WORDS = 3
NUM_PARTS = 32  # one part of so many is held out


@dataclass(frozen=True, slots=True)
class Example:
    """A prompt as the target read it, and what it answered."""

    prompt_ids: tuple[int, ...]
    response_ids: tuple[int, ...]
    is_greedy: bool
    is_held_out: bool

    def __len__(self) -> int:
        return len(self.prompt_ids) + len(self.response_ids)


@dataclass(frozen=True, slots=True)
class Corpus:
    """Examples to train on, and others to measure on; no user message is in both."""

    training: tuple[Example, ...]
    held_out: tuple[Example, ...]
    digest: str
    """Of all examples in order: the same files and template give the same."""
    num_excluded: int = 0
    num_too_long: int = 0


def read_corpus(
    paths: Sequence[Path],
    encode_prompt: Callable[[str], Sequence[int]],
    *,
    vocab_size: int,
    max_length: int,
    excluded: Collection[str] = (),
) -> Corpus:
    """Read the examples of all files; ``encode_prompt`` applies the target's chat template.

    Left out and counted: those whose user message is an excluded one, contains it or is contained
    in it, where the shorter has three words, and those longer than ``max_length``.

    Raises: InvalidField naming file and line for a line that is no example; OSError.
    """
    found = {_normalised(text) for text in excluded}
    examples: list[Example] = []
    num_excluded = num_too_long = 0
    digest = hashlib.blake2b(digest_size=16)
    for path in paths:
        for where, row in _rows(path):
            user = _user(where, row)
            if _overlaps(_normalised(user), found):
                num_excluded += 1
                continue
            example = Example(
                prompt_ids=tuple(encode_prompt(user)),
                response_ids=_response_ids(where, row, vocab_size),
                is_greedy=row.get("temperature") == 0,
                is_held_out=_part(user) == 0,
            )
            if len(example) > max_length:
                num_too_long += 1
                continue
            facts = [example.prompt_ids, example.response_ids, example.is_greedy]
            digest.update(json.dumps(facts).encode())
            examples.append(example)
    return Corpus(
        training=tuple(each for each in examples if not each.is_held_out),
        held_out=tuple(each for each in examples if each.is_held_out),
        digest=digest.hexdigest(),
        num_excluded=num_excluded,
        num_too_long=num_too_long,
    )


def read_user_messages(path: Path) -> list[str]:
    """Return the first user message of every line: ``user``, or the first of ``turns``.

    Raises: InvalidField naming file and line; OSError.
    """
    return [_user(where, row) for where, row in _rows(path)]


def read_questions(path: Path) -> list[str]:
    """Return every user message of every line: ``user``, or all ``turns``.

    Raises: InvalidField naming file and line; OSError.
    """
    found: list[str] = []
    for where, row in _rows(path):
        found.append(_user(where, row))
        found += [turn for turn in (row.get("turns") or [])[1:] if isinstance(turn, str)]
    return found


def _rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    with _open(path) as file:
        for number, line in enumerate(file, start=1):
            where = f"{path}:{number}"
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise InvalidField(where, f"no JSON: {error}") from error
            if not isinstance(row, dict):
                raise InvalidField(where, "must be a JSON object")
            yield where, row


def _open(path: Path) -> IO[str]:
    if path.suffix == ".xz":
        return lzma.open(path, "rt", encoding="utf-8")
    return path.open(encoding="utf-8")


def _user(where: str, row: dict[str, Any]) -> str:
    user = row.get("user", (row.get("turns") or [None])[0])
    if not isinstance(user, str) or not user.strip():
        raise InvalidField(where, "user must be a text")
    return user


def _response_ids(where: str, row: dict[str, Any], vocab_size: int) -> tuple[int, ...]:
    ids = row.get("response_ids")
    if not isinstance(ids, list) or not ids:
        raise InvalidField(where, "response_ids must list the ids of an answer")
    for token_id in ids:
        if not isinstance(token_id, int) or not 0 <= token_id < vocab_size:
            raise InvalidField(where, f"response_ids: {token_id!r} is no id below {vocab_size}")
    return tuple(ids)


def _part(user: str) -> int:
    """Return the part of a message, by its text alone: repeated messages stay together."""
    digest = hashlib.blake2b(_normalised(user).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") % NUM_PARTS


def _normalised(text: str) -> str:
    return " ".join(text.lower().split())


def _overlaps(user: str, excluded: Collection[str]) -> bool:
    """True if one of the texts is, holds or is held by the message; scraps of two words aside."""
    if user in excluded:
        return True
    is_long = len(user.split()) >= MIN_WORDS
    return any(
        (is_long and user in each) or (each in user and len(each.split()) >= MIN_WORDS)
        for each in excluded
    )
