"""Folders of models without weights: a configuration to draw from, and a made-up tokenizer."""

import json
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE

LOGIT_STD = 1.28  # what the usual initializer_range of 0.02 gives at a width of 4096


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a Llama."""

    num_layers: int
    hidden_size: int
    intermediate_size: int
    num_heads: int
    num_kv_heads: int
    vocab_size: int
    max_context_length: int

    def config(self) -> dict[str, object]:
        """Return config.json; no id ends a text, so every output has the length asked for."""
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "num_hidden_layers": self.num_layers,
            "hidden_size": self.hidden_size,
            "intermediate_size": self.intermediate_size,
            "num_attention_heads": self.num_heads,
            "num_key_value_heads": self.num_kv_heads,
            "vocab_size": self.vocab_size,
            "max_position_embeddings": self.max_context_length,
            # A logit sums hidden_size terms: this keeps small widths as decided as large ones.
            "initializer_range": LOGIT_STD / self.hidden_size**0.5,
            "rms_norm_eps": 1e-5,
            "rope_theta": 500_000.0,
            "tie_word_embeddings": False,
            "bos_token_id": None,
            "eos_token_id": None,
        }


@dataclass(frozen=True, slots=True)
class Pair:
    """A target and an unrelated small draft model with the same tokenizer."""

    target: Shape
    draft: Shape


PAIRS = {
    "8b": Pair(
        Shape(32, 4096, 14_336, 32, 8, 128_256, 8192),
        Shape(4, 1024, 3584, 16, 8, 128_256, 8192),
    ),
    "tiny": Pair(
        Shape(2, 64, 128, 4, 2, 1024, 512),
        Shape(1, 32, 64, 4, 2, 1024, 512),
    ),
}


def made_up_tokenizer(vocab_size: int) -> Tokenizer:
    """Return a tokenizer of single bytes, with words that no text contains up to ``vocab_size``."""
    words = sorted(pre_tokenizers.ByteLevel.alphabet())
    words += [f"<word{i}>" for i in range(len(words), vocab_size)]
    tokenizer = Tokenizer(BPE({word: i for i, word in enumerate(words)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def write_model(folder: Path, shape: Shape) -> Path:
    """Write what ``--load-format dummy`` needs, and return the folder."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(shape.config(), indent=2))
    (folder / "tokenizer_config.json").write_text("{}")
    made_up_tokenizer(shape.vocab_size).save(str(folder / "tokenizer.json"))
    return folder
