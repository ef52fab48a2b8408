"""Drives vLLM's CPU build, in the environment that ``make bench-peers`` makes.

Modes: ``plain``, ``ngram``, ``draft-model``. Temperature 0 only: in this release speculation on
CPUs divides logits by uninitialised temperatures when it samples.
"""

import argparse
import os
import time
from pathlib import Path
from typing import Any

from bench.peers import procfs
from bench.peers.driver import serve
from bench.peers.turn import Answer, Turn

MAX_MODEL_LENGTH = 4096
MAX_STREAMS = 64  # as many as Outrider's orchestrator decodes at once
KV_CACHE_GIB = "1"  # as much as Outrider's verifier has
NUM_DRAFT_TOKENS = 4
NGRAM = {"prompt_lookup_min": 2, "prompt_lookup_max": 4}  # as in Outrider's own n-gram lookup


class VllmDriver:
    """One asynchronous engine; its core is a process of its own."""

    def __init__(self, mode: str, target: Path, draft: Path, *, is_eager: bool) -> None:
        self._mode, self._target, self._draft = mode, target, draft
        self._is_eager = is_eager
        self._engine: Any = None

    async def start(self) -> dict[str, str]:
        """Load the models."""
        cpus = sorted(os.sched_getaffinity(0))
        os.environ["VLLM_CPU_KVCACHE_SPACE"] = KV_CACHE_GIB
        # Left to itself it keeps a core free for what is not arithmetic.
        os.environ["VLLM_CPU_OMP_THREADS_BIND"] = ",".join(map(str, cpus))
        # Imported here: it reads the variables when it is imported.
        import vllm
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM

        arguments = AsyncEngineArgs(
            model=str(self._target),
            dtype="bfloat16",
            max_model_len=MAX_MODEL_LENGTH,
            max_num_seqs=MAX_STREAMS,
            speculative_config=self._speculation(),
            enforce_eager=self._is_eager,
            enable_log_requests=False,
        )
        self._engine = AsyncLLM.from_engine_args(arguments)
        return {
            "vllm": vllm.__version__,
            "draft_model": self._draft.name if self._mode == "draft-model" else "",
            "model_code": "eager" if self._is_eager else "compiled",
        }

    def _speculation(self) -> dict[str, Any] | None:
        if self._mode == "ngram":
            return {"method": "ngram", "num_speculative_tokens": NUM_DRAFT_TOKENS, **NGRAM}
        if self._mode == "draft-model":
            return {
                "method": "draft_model",
                "model": str(self._draft),
                "num_speculative_tokens": NUM_DRAFT_TOKENS,
            }
        return None

    async def answer(self, turn: Turn, index: int) -> Answer:
        """Stream one answer."""
        from vllm import SamplingParams
        from vllm.sampling_params import RequestOutputKind

        sampling = SamplingParams(
            temperature=0.0,
            max_tokens=turn.num_tokens,
            output_kind=RequestOutputKind.DELTA,
        )
        prompt = {"prompt_token_ids": turn.prompts[index], "cache_salt": turn.salt}
        ids: list[int] = []
        arrivals: list[tuple[float, int]] = []
        began = time.perf_counter()
        async for output in self._engine.generate(prompt, sampling, f"{turn.salt} {index}"):
            new = list(output.outputs[0].token_ids)
            if new:
                arrivals.append((time.perf_counter() - began, len(new)))
                ids += new
        return Answer(ids, arrivals)

    def pids(self, mode: str) -> list[int]:
        """Return this process and the engine's."""
        return procfs.descendants(os.getpid())

    async def stop(self) -> None:
        """End the engine's processes."""
        if self._engine is not None:
            self._engine.shutdown()


def main() -> None:
    """Parse flags and serve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mode", required=True, choices=("plain", "ngram", "draft-model"))
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument("--draft", type=Path, required=True)
    parser.add_argument("--eager", action="store_true", help="do not compile the models")
    options = parser.parse_args()
    driver = VllmDriver(options.mode, options.target, options.draft, is_eager=options.eager)
    serve(driver)


if __name__ == "__main__":
    main()
