"""Target-only decoding through the whole stack against transformers' own ``generate``.

``python -m bench.target_only``: bf16, greedy, one stream beside transformers in the same run, then
eight streams together. Rounds alternate, since machines are noisy; medians are reported.
"""

import argparse
import asyncio
import statistics
import sys
import time

from bench.report import print_table, write_report
from outrider.checkpoints import prepare
from outrider.cli.stack import StackOptions, run_stack
from outrider.client import Client, generate_request
from outrider.questions import load_questions
from outrider.sampling import SamplingParams

NUM_STREAMS = 8
MAX_CHARACTERS = 300


async def tokens_per_s(client: Client, prompts: list[str], num_tokens: int, salt: str) -> float:
    """Return tokens per second of all streams together, while all of them decode."""
    arrivals: list[list[float]] = [[] for _ in prompts]

    async def answer(index: int) -> None:
        sampling = SamplingParams(temperature=0.0, max_tokens=num_tokens, ignore_eos=True)
        request = generate_request(
            [("user", prompts[index])], sampling, target_only=True, cache_salt=f"{salt}{index}"
        )
        async for response in client.stream(request):
            if response.WhichOneof("kind") == "chunk":
                arrivals[index].append(time.perf_counter())

    await asyncio.gather(*map(answer, range(len(prompts))))
    # From the last first token, when the last prompt has been read, to the first last one.
    begin = max(times[0] for times in arrivals)
    end = min(times[-1] for times in arrivals)
    return sum(begin < at <= end for times in arrivals for at in times) / (end - begin)


class Transformers:
    """A process that decodes with transformers when it is asked to."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls) -> "Transformers":
        """Load the model; returns when it is ready."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "bench.transformers_decode",
            str(prepare().target),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
        )
        running = cls(process)
        await running._answer()
        return running

    async def tokens_per_s(self, prompt: str, num_tokens: int) -> float:
        """Return tokens per second after the first token of one stream."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{num_tokens} {prompt}\n".encode())
        await self._process.stdin.drain()
        return float(await self._answer())

    async def stop(self) -> None:
        """End the process."""
        self._process.terminate()
        await self._process.wait()

    async def _answer(self) -> str:
        assert self._process.stdout is not None
        return (await self._process.stdout.readline()).decode().strip()


async def run(rounds: int, num_tokens: int) -> None:
    """Measure and report."""
    questions = load_questions(NUM_STREAMS, max_characters=MAX_CHARACTERS)
    prompts = [" ".join(question.text.split()) for question in questions]
    options = StackOptions(verifier_flags=[("--model", str(prepare().target))])
    reference = await Transformers.start()
    figures: dict[str, list[float]] = {"transformers, 1": [], "outrider, 1": [], "outrider, 8": []}
    try:
        async with run_stack(options) as stack, Client(stack.orchestrator.address) as client:
            for index in range(rounds + 1):
                salt = f"{index}-"
                theirs = await reference.tokens_per_s(prompts[0], num_tokens)
                one = await tokens_per_s(client, prompts[:1], num_tokens, salt)
                eight = await tokens_per_s(client, prompts, num_tokens, salt + "all-")
                if index:  # the first round warms up
                    for name, value in zip(figures, (theirs, one, eight), strict=True):
                        figures[name].append(value)
    finally:
        await reference.stop()
    medians = {name: statistics.median(values) for name, values in figures.items()}
    theirs, one, eight = medians.values()
    rows = [
        (name, f"{medians[name]:.1f}", f"{min(values):.1f} to {max(values):.1f}")
        for name, values in figures.items()
    ]
    title = f"tokens/s, bf16, greedy, {num_tokens} tokens, {rounds} rounds"
    print_table(title, ("streams", "median", "spread"), rows)
    summary = {
        "speed_vs_transformers": statistics.median(
            ours / other
            for ours, other in zip(figures["outrider, 1"], figures["transformers, 1"], strict=True)
        ),
        "eight_streams_vs_one": statistics.median(
            many / single
            for many, single in zip(figures["outrider, 8"], figures["outrider, 1"], strict=True)
        ),
        "tokens_per_s_1": one,
        "tokens_per_s_8": eight,
        "tokens_per_s_transformers": theirs,
    }
    for name, value in summary.items():
        print(f"{name} {value:.2f}")
    print(write_report("target_only", summary, {"tokens_per_s": figures}))


def main() -> None:
    """Parse flags and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="measured rounds")
    parser.add_argument("--tokens", type=int, default=64, help="tokens of every answer")
    options = parser.parse_args()
    asyncio.run(run(options.rounds, options.tokens))


if __name__ == "__main__":
    main()
