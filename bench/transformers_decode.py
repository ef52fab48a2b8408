"""Decodes with transformers' ``generate``, one line of standard input at a time.

Reads ``NUM_TOKENS PROMPT`` and writes the tokens per second after the first token.
"""

import sys
import time

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main() -> None:
    """Load the model of the first argument and serve until the input ends."""
    folder = sys.argv[1]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()
    print("ready", flush=True)
    for line in sys.stdin:
        count, prompt = line.rstrip("\n").split(" ", 1)
        chat = [{"role": "user", "content": prompt}]
        prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        ids = tokenizer(prompt, return_tensors="pt", add_special_tokens=False)["input_ids"]
        assert isinstance(ids, torch.Tensor)
        one = _seconds(model, ids, 1)
        many = _seconds(model, ids, int(count))
        print((int(count) - 1) / (many - one), flush=True)


def _seconds(model: torch.nn.Module, ids: torch.Tensor, num_tokens: int) -> float:
    began = time.perf_counter()
    with torch.inference_mode():
        model.generate(  # type: ignore[operator]
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=num_tokens,
            min_new_tokens=num_tokens,
            do_sample=False,
        )
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
