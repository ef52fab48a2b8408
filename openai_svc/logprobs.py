"""Log probabilities in the forms of both endpoints; each form is lists that grow with the text."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from openai_svc.vocabulary import Vocabulary
from outrider.v1.common_pb2 import TokenLogprobs

Lists = dict[str, list[Any]]

# JSON has no infinity; this is what OpenAI says in its place.
LOWEST = -9999.0


def chat_logprobs(entries: Iterable[TokenLogprobs], vocabulary: Vocabulary) -> Lists:
    """Return the form of chat completions."""

    def token(token_id: int, logprob: float) -> dict[str, object]:
        return {
            "token": vocabulary.text(token_id),
            "logprob": max(logprob, LOWEST),
            "bytes": list(vocabulary[token_id]),
        }

    content = [
        {
            **token(entry.token_id, entry.logprob),
            "top_logprobs": [token(*each) for each in _top(entry)],
        }
        for entry in entries
    ]
    return {"content": content}


def completion_logprobs(
    entries: Sequence[TokenLogprobs | None],
    token_ids: Sequence[int],
    offsets: Sequence[int],
    vocabulary: Vocabulary,
) -> Lists:
    """Return the form of completions; None stands for a token that nothing predicted."""
    return {
        "text_offset": list(offsets),
        "tokens": [vocabulary.text(i) for i in token_ids],
        "token_logprobs": [each and max(each.logprob, LOWEST) for each in entries],
        "top_logprobs": [each and _by_text(each, vocabulary) for each in entries],
    }


def prompt_logprobs(
    entries: Iterable[TokenLogprobs], vocabulary: Vocabulary
) -> list[dict[str, Any] | None]:
    """Return the form that other servers have: by id, nothing for the first token."""

    def position(entry: TokenLogprobs) -> dict[str, Any]:
        ranks = {token_id: rank for rank, token_id in enumerate(entry.top_ids, start=1)}
        return {
            str(token_id): {
                "logprob": max(logprob, LOWEST),
                "rank": ranks.get(token_id),
                "decoded_token": vocabulary.text(token_id),
            }
            for token_id, logprob in [*_top(entry), (entry.token_id, entry.logprob)]
        }

    return [None, *map(position, entries)]


def prompt_offsets(text: str, pieces: Iterable[bytes]) -> Iterator[int]:
    """Yield the character of the text at which each token begins.

    A token that is not in the text, such as one that begins every text, takes no room.
    """
    data, position, num_characters = text.encode(), 0, 0
    for piece in pieces:
        yield num_characters
        # A tokenizer of Llama's kind puts a space before the first word.
        found = piece if data.startswith(piece, position) else piece.removeprefix(b" ")
        if data.startswith(found, position):
            position += len(found)
            num_characters += sum(byte & 0xC0 != 0x80 for byte in found)


def joined(parts: Iterable[Lists]) -> Lists:
    """Put the lists of several parts behind each other."""
    whole: Lists = {}
    for part in parts:
        for name, values in part.items():
            whole.setdefault(name, []).extend(values)
    return whole


def _top(entry: TokenLogprobs) -> Iterable[tuple[int, float]]:
    return zip(entry.top_ids, entry.top_logprobs, strict=True)


def _by_text(entry: TokenLogprobs, vocabulary: Vocabulary) -> dict[str, float]:
    """Return the most likely tokens by their text, and the token itself; a likelier one wins."""
    found: dict[str, float] = {}
    for token_id, logprob in [*_top(entry), (entry.token_id, entry.logprob)]:
        found.setdefault(vocabulary.text(token_id), max(logprob, LOWEST))
    return found
