"""Models whose greedy output is a chain of ids, so that every text is written by hand."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from tests.toy import BOS, EOS, TEMPLATE, toy_tokenizer

VOCAB_SIZE = 512
FAR = 40.0  # logits between the next token and all others


def save_chain(
    folder: Path,
    successors: Mapping[int, int],
    *,
    eos_token_ids: Sequence[int] = (),
    max_context_length: int = 512,
) -> Path:
    """Write a Llama with the toy tokenizer whose greedy choice after an id is its successor.

    Embeddings are unit vectors, attention and MLP add nothing, and the head reads the table. An id
    without an entry follows itself.
    """
    tokenizer = toy_tokenizer(vocab_size=VOCAB_SIZE)
    ends = list(eos_token_ids) or None
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=VOCAB_SIZE,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=max_context_length,
        bos_token_id=tokenizer.token_to_id(BOS),
        eos_token_id=ends,
        tie_word_embeddings=False,
    )
    torch.manual_seed(0)
    model = LlamaForCausalLM(config)
    table = torch.zeros(VOCAB_SIZE, VOCAB_SIZE)  # [last, next]
    for last in range(VOCAB_SIZE):
        table[last, successors.get(last, last)] = FAR
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(torch.eye(VOCAB_SIZE))
        model.model.layers[0].self_attn.o_proj.weight.zero_()
        model.model.layers[0].mlp.down_proj.weight.zero_()
        # The norm stretches a unit vector to the root of its size.
        model.lm_head.weight.copy_(table.T / VOCAB_SIZE**0.5)
    model.generation_config.eos_token_id = ends
    model.save_pretrained(folder)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token=BOS,
        eos_token=EOS if ends else None,
        chat_template=TEMPLATE,
    )
    fast.save_pretrained(folder)
    generation = folder / "generation_config.json"
    stored = json.loads(generation.read_text()) if generation.exists() else {}
    generation.write_text(json.dumps(stored | {"eos_token_id": ends}))
    return folder


def chain(ids: Sequence[int]) -> dict[int, int]:
    """Return the successors that make the ids follow one another, the last one itself."""
    return dict(zip(ids, ids[1:], strict=False))


def byte_ids(text: str) -> list[int]:
    """Return the toy tokenizer's ids of ASCII text, a byte each, without merges."""
    tokenizer = toy_tokenizer(vocab_size=VOCAB_SIZE)
    return [tokenizer.encode(character).ids[0] for character in text]
