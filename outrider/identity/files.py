"""The files that define a model's text side, as bytes, so that they can travel."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from tokenizers import Tokenizer

TOKENIZER_FILE_NAMES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "generation_config.json",
)


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """The tokenizer files of one model by name; ``tokenizer.json`` is always among them.

    Raises: ValueError if ``tokenizer.json`` is missing or a name is not in TOKENIZER_FILE_NAMES.
    """

    contents: Mapping[str, bytes]

    def __post_init__(self) -> None:
        if unknown := sorted(set(self.contents) - set(TOKENIZER_FILE_NAMES)):
            raise ValueError(f"not tokenizer files: {', '.join(unknown)}")
        if "tokenizer.json" not in self.contents:
            raise ValueError(
                "no tokenizer.json; save the tokenizer in the format of the tokenizers library"
            )
        object.__setattr__(self, "contents", MappingProxyType(dict(self.contents)))

    @classmethod
    def from_folder(cls, folder: str | Path) -> Self:
        """Read those of the files that the folder has.

        Raises: ValueError if there is no ``tokenizer.json``.
        """
        paths = (Path(folder) / name for name in TOKENIZER_FILE_NAMES)
        return cls({path.name: path.read_bytes() for path in paths if path.is_file()})

    def text(self, name: str) -> str | None:
        """Return the file's text, or None where the model has no such file."""
        content = self.contents.get(name)
        return None if content is None else content.decode("utf-8-sig")

    def json(self, name: str) -> dict[str, Any]:
        """Return the file's JSON object, an empty one where the model has no such file.

        Raises: ValueError naming the file if it does not hold a JSON object.
        """
        text = self.text(name)
        if text is None:
            return {}
        try:
            value = json.loads(text)
        except json.JSONDecodeError as error:
            raise ValueError(f"{name}: {error}") from error
        if not isinstance(value, dict):
            raise ValueError(f"{name} does not hold a JSON object")
        return value

    def tokenizer(self) -> Tokenizer:
        """Return a new tokenizer that neither pads nor truncates.

        Raises: ValueError if the tokenizers library cannot read the file.
        """
        try:
            tokenizer = Tokenizer.from_buffer(self.contents["tokenizer.json"])
        except Exception as error:  # the library raises plain Exception
            raise ValueError(f"tokenizer.json: {error}") from error
        # Some published files carry the padding or truncation of a training run.
        tokenizer.no_padding()
        tokenizer.no_truncation()
        return tokenizer
