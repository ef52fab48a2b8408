"""The special tokens that a model's files name."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from tokenizers import Tokenizer

from outrider.identity.files import TokenizerFiles


@dataclass(frozen=True, slots=True)
class SpecialTokens:
    """Texts of the named special tokens, and the ids that matter in serving."""

    texts: Mapping[str, str]
    """By name, such as "bos_token"; what a chat template can use as variables."""
    eos_token_ids: tuple[int, ...]
    """Ids that end a text, ascending; empty where the files name none."""
    bos_token_id: int | None
    pad_token_id: int | None

    @classmethod
    def from_files(cls, files: TokenizerFiles, *, tokenizer: Tokenizer | None = None) -> Self:
        """Read the names from the files and their ids from the tokenizer.

        EOS ids are those of ``generation_config.json``, which instruct models extend beyond the
        tokenizer's own one, and only without them the tokenizer's.

        Raises: ValueError if ``eos_token_id`` is neither an id nor a list of ids.
        """
        tokenizer = files.tokenizer() if tokenizer is None else tokenizer
        texts = special_token_texts(files)

        def token_id(name: str) -> int | None:
            return tokenizer.token_to_id(texts[name]) if name in texts else None

        eos_token_ids = _ids(files.json("generation_config.json").get("eos_token_id"))
        if not eos_token_ids and (eos_token_id := token_id("eos_token")) is not None:
            eos_token_ids = (eos_token_id,)
        return cls(texts, eos_token_ids, token_id("bos_token"), token_id("pad_token"))


def special_token_texts(files: TokenizerFiles) -> dict[str, str]:
    """Return the text of every named special token.

    ``special_tokens_map.json`` has a say only beside a configuration that does not list its added
    tokens, as in transformers.
    """
    config = files.json("tokenizer_config.json")
    named = dict(config)
    if "added_tokens_decoder" not in config:
        named |= files.json("special_tokens_map.json")
    texts = {name: _token_text(value) for name, value in named.items() if name.endswith("_token")}
    return {name: text for name, text in texts.items() if text is not None}


def _token_text(value: Any) -> str | None:
    text = value.get("content") if isinstance(value, dict) else value
    return text if isinstance(text, str) else None


def _ids(value: Any) -> tuple[int, ...]:
    values = [] if value is None else value if isinstance(value, list) else [value]
    if not all(isinstance(item, int) for item in values):
        raise ValueError(f"generation_config.json: eos_token_id is {value!r}, not an id or a list")
    return tuple(sorted(set(values)))
