"""The target's tokenizer and chat template, as the orchestrator uses them."""

from collections.abc import Mapping, Sequence
from typing import Any

from outrider.constraint import Constraints
from outrider.errors import InvalidField
from outrider.identity.files import TokenizerFiles
from outrider.identity.special import SpecialTokens
from outrider.identity.template import chat_template
from outrider.text.stream import TextStream
from outrider.text.template import ChatTemplate, Message
from outrider.text.token_bytes import TokenBytes


class TextCodec:
    """Text or messages to token ids, and token ids to text. Safe to use from several threads.

    Raises: ValueError if the files hold no readable tokenizer or template.
    """

    __slots__ = (
        "_special_ids",
        "_template",
        "_token_bytes",
        "_tokenizer",
        "constraints",
        "special_tokens",
        "vocab_size",
    )

    def __init__(self, files: TokenizerFiles) -> None:
        self._tokenizer = files.tokenizer()
        self._token_bytes = TokenBytes(self._tokenizer)
        self.constraints = Constraints(self._tokenizer)
        self.special_tokens = SpecialTokens.from_files(files, tokenizer=self._tokenizer)
        added = self._tokenizer.get_added_tokens_decoder()
        self._special_ids = frozenset(i for i, token in added.items() if token.special)
        self.vocab_size = max(self._tokenizer.get_vocab(with_added_tokens=True).values()) + 1
        text = chat_template(files)
        self._template = (
            None if text is None else ChatTemplate(text, variables=self.special_tokens.texts)
        )

    @property
    def has_chat_template(self) -> bool:
        return self._template is not None

    def encode(self, text: str) -> list[int]:
        """Return the ids of a plain text, with the special tokens that the tokenizer adds."""
        return list(self._tokenizer.encode(text).ids)

    def render_chat(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Any] | None = None,
        variables: Mapping[str, Any] | None = None,
        continue_final_message: bool = False,
    ) -> str:
        """Return the text of the prompt that the template makes of the messages.

        Raises: InvalidField naming ``chat`` if the model has no template, or as
            ``ChatTemplate.render`` does.
        """
        if self._template is None:
            raise InvalidField("chat", "the model has no chat template; send text or token ids")
        return self._template.render(
            messages,
            tools=tools,
            variables=variables,
            continue_final_message=continue_final_message,
        )

    def apply_chat_template(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Any] | None = None,
        variables: Mapping[str, Any] | None = None,
        continue_final_message: bool = False,
    ) -> list[int]:
        """Return the ids of the prompt that the template makes of the messages.

        Raises: InvalidField as ``render_chat`` does.
        """
        text = self.render_chat(
            messages,
            tools=tools,
            variables=variables,
            continue_final_message=continue_final_message,
        )
        # The template has written the special tokens itself; adding them again would double BOS.
        return self.encode_plain(text)

    def encode_plain(self, text: str) -> list[int]:
        """Return the ids of a text without adding any; special tokens in it are recognised."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """Return the text of the ids by themselves; an incomplete character reads U+FFFD here."""
        return self._tokenizer.decode(token_ids, skip_special_tokens=skip_special_tokens)

    def token_bytes(self, token_id: int) -> bytes:
        """Return what an id stands for by itself, maybe only a part of a character."""
        return self._token_bytes(token_id)

    def stream(
        self, *, skip_special_tokens: bool = True, prompt_ids: Sequence[int] = ()
    ) -> TextStream:
        """Return a new stream for the output that follows the prompt."""
        return TextStream(
            self._tokenizer,
            skip_special_tokens=skip_special_tokens,
            special_ids=self._special_ids,
            prompt_ids=prompt_ids,
        )
