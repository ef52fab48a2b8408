"""Drives transformers' ``generate``, one prompt at a time.

Modes: ``plain``; ``assistant``, with a draft model; ``prompt-lookup``.
"""

import argparse
import os
import time
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import AutoModelForCausalLM
from transformers.generation.streamers import BaseStreamer

from bench.peers.driver import serve
from bench.peers.turn import Answer, Turn

PROMPT_LOOKUP_TOKENS = 10  # what its documentation uses


class Arrivals(BaseStreamer):
    """Notes when tokens come; the first to come is the prompt."""

    def __init__(self) -> None:
        self.arrivals: list[tuple[float, int]] = []
        self._began = time.perf_counter()
        self._has_prompt = False

    def put(self, value: torch.Tensor) -> None:
        """Take the tokens of one pass."""
        if self._has_prompt:
            self.arrivals.append((time.perf_counter() - self._began, value.numel()))
        self._has_prompt = True

    def end(self) -> None:
        """Nothing is left to do."""


class TransformersDriver:
    """A target, and an assistant where the mode asks for it."""

    def __init__(self, mode: str, target: Path, draft: Path) -> None:
        self._mode, self._folder, self._draft = mode, target, draft
        self._target: Any = None
        self._options: dict[str, Any] = {}

    async def start(self) -> dict[str, str]:
        """Load the models."""
        torch.set_num_threads(len(os.sched_getaffinity(0)))
        self._target = _load(self._folder)
        if self._mode == "assistant":
            self._options = {"assistant_model": _load(self._draft)}
        elif self._mode == "prompt-lookup":
            self._options = {"prompt_lookup_num_tokens": PROMPT_LOOKUP_TOKENS}
        return {
            "transformers": transformers.__version__,
            "torch": torch.__version__,
            "assistant": self._draft.name if self._mode == "assistant" else "",
        }

    async def answer(self, turn: Turn, index: int) -> Answer:
        """Answer one prompt; nothing else runs meanwhile, there is one stream."""
        ids = torch.tensor([turn.prompts[index]])
        streamer = Arrivals()
        with torch.inference_mode():
            output = self._target.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=turn.num_tokens,
                do_sample=False,
                streamer=streamer,
                **self._options,
            )
        return Answer(output[0, ids.shape[1] :].tolist(), streamer.arrivals)

    def pids(self, mode: str) -> list[int]:
        """Return this process: there is no other."""
        return [os.getpid()]

    async def stop(self) -> None:
        """Nothing is left to end."""


def _load(folder: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).eval()


def main() -> None:
    """Parse flags and serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", required=True, choices=("plain", "assistant", "prompt-lookup"))
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--draft", type=Path, required=True)
    options = parser.parse_args()
    serve(TransformersDriver(options.mode, options.target, options.draft))


if __name__ == "__main__":
    main()
