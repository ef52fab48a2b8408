"""A tokenizer's ids as the bytes that they add to a text."""

from dataclasses import dataclass
from typing import Self

from llguidance import LLTokenizer
from tokenizers import Tokenizer

from outrider.token_sets import Bits, holds, pack_ids

END = "<|end of the constrained text|>"


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What every id writes, for us and for the library.

    ``ordinary`` are the ids that can stand in a constrained text: those that write something and
    are no special tokens.
    """

    tokenizer: LLTokenizer
    texts: tuple[bytes, ...]
    ordinary: Bits

    @classmethod
    def of(cls, tokenizer: Tokenizer) -> Self:
        """Read a tokenizer; takes about a second for a large one.

        Raises: ValueError if the library cannot tell the bytes of its tokens.
        """
        size = vocab_size(tokenizer)
        extended = Tokenizer.from_str(tokenizer.to_str())
        # The library knows one end of text, and it must be none of the ids that a request may name.
        extended.add_special_tokens([END])
        end = extended.token_to_id(END)
        if end != size or extended.get_vocab_size() != size + 1:
            raise ValueError("the ids of its tokens have gaps")
        read = LLTokenizer(extended.to_str(), eos_token=end)
        texts = tuple(read.decode_bytes([token_id]) for token_id in range(size))
        ordinary = (i for i, text in enumerate(texts) if text and not read.is_special_token(i))
        return cls(read, texts, pack_ids(ordinary, size))

    @property
    def size(self) -> int:
        """Ids."""
        return len(self.texts)

    def spell(self, text: bytes) -> list[int] | None:
        """Return ordinary ids that write the bytes, None where there are none."""
        ids = self.tokenizer.tokenize_bytes(text)
        written = b"".join(self.texts[i] for i in ids)
        return ids if written == text and all(holds(self.ordinary, i) for i in ids) else None


def vocab_size(tokenizer: Tokenizer) -> int:
    """Return the number of ids, gaps included."""
    return max(tokenizer.get_vocab(with_added_tokens=True).values()) + 1
