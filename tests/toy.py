"""Small random models with a byte-level tokenizer, as folders that a worker can load."""

import json
from pathlib import Path

import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

NUM_BYTES = 256
EOS = "<eos>"
BOS = "<bos>"
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def toy_tokenizer(*, vocab_size: int = 512, swap: tuple[int, int] | None = None) -> Tokenizer:
    """Return a byte-level tokenizer: bytes, then common merges, then EOS and BOS as the last ids.

    ``swap`` exchanges the tokens of two ids, which makes another tokenizer of the same size.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    words = list(alphabet)
    merges: list[tuple[str, str]] = []
    for first in "abcdefghijklmnopqrstuvwxyz":
        for second in "aeiounrst":
            if len(words) < vocab_size - 2:
                words.append(first + second)
                merges.append((first, second))
    words += [f"<unused{i}>" for i in range(vocab_size - 2 - len(words))]
    if swap is not None:
        one, other = swap
        words[one], words[other] = words[other], words[one]
    vocabulary = {word: i for i, word in enumerate(words)}
    tokenizer = Tokenizer(BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([EOS, BOS])
    return tokenizer


def save_toy(
    folder: Path,
    *,
    seed: int = 0,
    vocab_size: int = 512,
    logits_size: int | None = None,
    num_layers: int = 2,
    hidden_size: int = 64,
    max_context_length: int = 512,
    swap: tuple[int, int] | None = None,
    template: str = TEMPLATE,
    eos_token_ids: tuple[int, ...] | None = None,
    scale: float = 0.08,
) -> Path:
    """Write a random Llama with the toy tokenizer and return its folder.

    ``eos_token_ids`` () writes a model without EOS; None means the tokenizer's.
    """
    tokenizer = toy_tokenizer(vocab_size=vocab_size, swap=swap)
    eos, bos = tokenizer.token_to_id(EOS), tokenizer.token_to_id(BOS)
    ends = [eos] if eos_token_ids is None else list(eos_token_ids)
    config = LlamaConfig(
        vocab_size=logits_size or vocab_size,
        hidden_size=hidden_size,
        intermediate_size=2 * hidden_size,
        num_hidden_layers=num_layers,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=max_context_length,
        initializer_range=scale,
        bos_token_id=bos,
        eos_token_id=ends or None,
        tie_word_embeddings=False,
    )
    torch.manual_seed(seed)
    model = LlamaForCausalLM(config)
    model.generation_config.eos_token_id = ends or None
    model.generation_config.bos_token_id = bos
    model.save_pretrained(folder)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS if ends else None,
        chat_template=template,
    )
    fast.save_pretrained(folder)
    generation = folder / "generation_config.json"
    stored = json.loads(generation.read_text()) if generation.exists() else {}
    stored["eos_token_id"] = ends or None
    generation.write_text(json.dumps(stored))
    return folder
