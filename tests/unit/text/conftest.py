"""Small tokenizers built in the tests: byte-level as GPT-2's, byte fallback as Llama's."""

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers
from tokenizers.processors import TemplateProcessing
from tokenizers.trainers import BpeTrainer

from outrider.identity import TokenizerFiles

CORPUS = ["the quick brown fox 你好世界 한국어 안녕하세요 naïve 👨‍👩‍👧 שלום a\u0301e\u0301 END"] * 4
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]

MakeFiles = Callable[..., TokenizerFiles]


@pytest.fixture(scope="session")
def byte_level() -> Tokenizer:
    """Merges are learnt across words, so that many tokens begin or end inside a character."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=330,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=SPECIALS,
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


@pytest.fixture(scope="session")
def metaspace() -> Tokenizer:
    """Words begin with U+2581 and unknown characters fall apart into bytes."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", *"abcdefghijklmnopqrstuvwxyzP", "▁i", "▁is", "is"]
    tokenizer = Tokenizer(
        models.BPE(
            {piece: i for i, piece in enumerate(pieces)},
            [("▁", "i"), ("▁i", "s"), ("i", "s")],
            unk_token="<unk>",
            byte_fallback=True,
            fuse_unk=True,
        )
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in ("<s>", "</s>")])
    tokenizer.post_processor = TemplateProcessing(
        single="<s> $A", pair="<s> $A $B", special_tokens=[("<s>", 1)]
    )
    return tokenizer


@pytest.fixture(scope="session")
def make_files() -> MakeFiles:
    """Files of a tokenizer; a keyword replaces a file's content, JSON unless it is text."""

    def make(tokenizer: Tokenizer, template: str | None = None, **contents: Any) -> TokenizerFiles:
        config: Mapping[str, Any] = contents.pop("config", {"eos_token": "<|im_end|>"})
        files = {
            "tokenizer.json": tokenizer.to_str().encode(),
            "tokenizer_config.json": json.dumps(config).encode(),
        }
        if template is not None:
            files["chat_template.jinja"] = template.encode()
        for name, content in contents.items():
            files[f"{name}.json"] = json.dumps(content).encode()
        return TokenizerFiles(files)

    return make
