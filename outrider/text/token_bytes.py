"""What single tokens stand for, as bytes: a character may be spread over several of them."""

import json
import re

from tokenizers import Tokenizer

BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")
WORD_BEGINS = "\u2581"


class TokenBytes:
    """Answers by how the tokenizer's decoder reads tokens: byte-level, with byte fallback, plain.

    The bytes of all ids of a text are the text's, for Llama's kind with the space that it puts
    before the first word.
    """

    __slots__ = ("_added", "_decoders", "_from_character", "_tokenizer")

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._added = {i: t.content for i, t in tokenizer.get_added_tokens_decoder().items()}
        decoder = tokenizer.decoder
        # Its pickled state is its JSON; the whole tokenizer's would have the vocabulary in it.
        state = None if decoder is None else json.loads(decoder.__getstate__())
        self._decoders = _decoder_types(state)
        self._from_character = {character: byte for byte, character in _alphabet().items()}

    def __call__(self, token_id: int) -> bytes:
        """Return the bytes of an id, none for one that no token has."""
        token = self._tokenizer.id_to_token(token_id)
        if token is None:
            return b""
        if token_id in self._added:
            return self._added[token_id].encode()
        if "ByteLevel" in self._decoders and self._from_character.keys() >= set(token):
            return bytes(self._from_character[character] for character in token)
        if "ByteFallback" in self._decoders and (match := BYTE_TOKEN.fullmatch(token)):
            return bytes.fromhex(match[1])
        if self._decoders & {"Metaspace", "Replace"}:
            return token.replace(WORD_BEGINS, " ").encode()
        return str(self._tokenizer.decode([token_id], skip_special_tokens=False)).encode()


def _decoder_types(decoder: dict[str, object] | None) -> frozenset[str]:
    """Return the names of a decoder and of those that it consists of."""
    if decoder is None:
        return frozenset()
    parts = decoder.get("decoders", [])
    assert isinstance(parts, list)
    return frozenset({str(decoder["type"])}).union(*map(_decoder_types, parts))


def _alphabet() -> dict[int, str]:
    """Return the character that stands for each byte in byte-level tokens, as GPT-2 chose them."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printable)
    return {byte: chr(byte) for byte in printable} | {
        byte: chr(256 + number) for number, byte in enumerate(others)
    }
