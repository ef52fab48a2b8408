"""The text of a growing sequence, in pieces that are never taken back."""

from collections.abc import Sequence

from tokenizers import Tokenizer

BROKEN = "\ufffd"
# Tokens of the prompt that decide how the first output token reads; enough for any one character.
MIN_TAIL_TOKENS = 6
MAX_TAIL_TOKENS = 64
# A text that stays broken for so long is no text; waiting costs time quadratic in its length.
MAX_PENDING_TOKENS = 128


class TextStream:
    """Turns output ids into text, one token at a time.

    The pieces put together are what the ids decode to as a continuation of the prompt, and they
    depend on nothing but the ids. A character that is not complete yet waits for its last token;
    one that is still incomplete at the end of the output is left out of the text. Bytes in mid-text
    that are no character at all read U+FFFD, as everywhere.
    """

    # The library's own DecodeStream raises where a byte run breaks what it has given out already,
    # and it cannot be asked what it holds at the end.
    __slots__ = ("_emitted", "_ids", "_num_read", "_skipped", "_skips", "_tokenizer")

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        skip_special_tokens: bool,
        special_ids: frozenset[int],
        prompt_ids: Sequence[int] = (),
    ) -> None:
        self._tokenizer = tokenizer
        self._skips = skip_special_tokens
        self._skipped = special_ids if skip_special_tokens else frozenset()
        # _ids decode to a text that begins with _emitted; those from _num_read on are not all told.
        self._ids = self._prompt_tail(prompt_ids)
        self._num_read = len(self._ids)
        self._emitted = self._decode(self._ids).rstrip(BROKEN)

    def push(self, token_id: int) -> str:
        """Take the next output id and return the text that has become certain, maybe none."""
        if token_id in self._skipped or self._tokenizer.id_to_token(token_id) is None:
            return ""  # the decoder drops it as well, so it must not cut a character in two
        self._ids.append(token_id)
        if len(self._ids) - self._num_read > MAX_PENDING_TOKENS:
            return self._give_up()
        text = self._decode(self._ids)
        certain = text.rstrip(BROKEN)
        if not certain.startswith(self._emitted):
            # A byte run that has been told is now broken as a whole: it is mended or it is over.
            return "" if text.endswith(BROKEN) else self._give_up()
        if len(certain) == len(self._emitted):
            return ""
        piece = certain[len(self._emitted) :]
        self._emitted = certain
        if certain == text:
            self._advance()
        return piece

    def flush(self) -> str:
        """Return the rest at the end of the text, without an incomplete character."""
        text = self._decode(self._ids).rstrip(BROKEN)
        if text.startswith(self._emitted):
            piece = text[len(self._emitted) :]
        else:
            piece = self._decode(self._ids[self._num_read :]).rstrip(BROKEN)
        self._advance()
        return piece

    def _give_up(self) -> str:
        """Tell the pending ids as they read by themselves."""
        piece = self._decode(self._ids[self._num_read :])
        self._advance()
        return piece

    def _advance(self) -> None:
        """Keep only the ids told last, as what the next one may depend on."""
        del self._ids[: self._num_read]
        self._num_read = len(self._ids)
        self._emitted = self._decode(self._ids)

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=self._skips)

    def _prompt_tail(self, prompt_ids: Sequence[int]) -> list[int]:
        """Return the prompt's last visible ids, from the beginning of a character on."""
        visible = [i for i in prompt_ids[-2 * MAX_TAIL_TOKENS :] if i not in self._skipped]
        for num_tokens in range(MIN_TAIL_TOKENS, MAX_TAIL_TOKENS):
            tail = visible[-num_tokens:]
            if not self._decode(tail).startswith(BROKEN):
                return tail
        return visible[-MIN_TAIL_TOKENS:]
