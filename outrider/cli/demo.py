"""``outrider demo``: real models, real prompts, with and without drafts, in one go."""

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from rich import box
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table
from rich.text import Text

from outrider.cli.interrupts import cancelled_by_signals
from outrider.cli.pairing import wait_paired
from outrider.cli.render import legend, plain_console, print_chunk
from outrider.cli.stack import StackOptions, run_stack
from outrider.client import Client, generate_request
from outrider.sampling import SamplingParams
from outrider.v1 import generation_pb2 as pb

PROMPTS = (
    "Rewrite this sentence in the past tense, then in the future tense: "
    "The engineers check every bridge in the valley before the river rises.",
    "List the planets of the solar system in order from the sun, one per line.",
    "Write a Python function that returns the n-th Fibonacci number, and explain it in one line.",
    "Summarise in two sentences: A lighthouse keeper lived alone on a small island. Every evening "
    "the lighthouse keeper lit the lamp so that ships would find their way past the rocks.",
    "What is the difference between weather and climate?",
    "Translate to French: The cat sleeps on the warm stone wall.",
    "Give three reasons why a city should plant trees.",
    "A train leaves at 9:40 and arrives at 11:15. How long does the journey take?",
)

NOTES = (
    "passes: of the target; saved: against target-only; length: mean acceptance length, tokens "
    "per verified draft, the target's own included. The head is one layer that reads the target's "
    "hidden states, trained on what the target wrote. The tree holds the likeliest of what was "
    "copied, seen before and drafted: most tokens per pass, and most rows to compute, which pays "
    "where a pass of many rows costs little more than one of few."
)


@dataclass(slots=True)
class Way:
    """One way of answering, and what it took over all prompts."""

    name: str
    target_only: bool = False
    sources: tuple[str, ...] = ()
    num_draft_tokens: int | None = None
    num_tokens: int = 0
    num_passes: int = 0
    num_saved: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    num_steps: int = 0
    ttft_ms: list[float] = field(default_factory=list)
    decode_s: float = 0.0

    def add(self, complete: pb.GenerateComplete, ttft_s: float, total_s: float) -> None:
        """Count one answer; times as the client saw them."""
        receipt = complete.receipt
        self.num_tokens += complete.completion_tokens
        self.num_passes += receipt.num_target_passes
        self.num_saved += receipt.num_passes_saved
        self.num_drafted += receipt.num_draft_tokens
        self.num_accepted += receipt.num_accepted_draft_tokens
        self.num_steps += receipt.num_spec_steps
        self.ttft_ms.append(ttft_s * 1e3)
        self.decode_s += total_s - ttft_s

    def row(self, num_prompts: int) -> tuple[str, ...]:
        """Return the line of the summary."""
        acceptance = f"{self.num_accepted / self.num_drafted:.0%}" if self.num_drafted else "–"
        length = f"{1 + self.num_accepted / self.num_steps:.2f}" if self.num_steps else "–"
        per_token_ms = self.decode_s * 1e3 / max(self.num_tokens - num_prompts, 1)
        return (
            self.name,
            str(self.num_tokens),
            str(self.num_passes),
            str(self.num_saved),
            acceptance,
            length,
            f"{sum(self.ttft_ms) / len(self.ttft_ms):.0f} ms",
            f"{per_token_ms:.1f} ms",
        )


def run_demo(models: Path, *, max_tokens: int, num_prompts: int) -> None:
    """Answer the prompts; Raises: StackError if a service does not come up."""
    console = plain_console()
    target, draft = _models(console, models)  # before the loop: Ctrl-C ends it where it is
    options = StackOptions(
        verifier_flags=[("--model", str(target))], drafter_flags=[("--model", str(draft))]
    )
    asyncio.run(_run(console, options, max_tokens=max_tokens, num_prompts=num_prompts))


async def _run(
    console: Console, options: StackOptions, *, max_tokens: int, num_prompts: int
) -> None:
    ways = [
        Way("n-gram", sources=("ngram",)),
        Way("copies or head", sources=("suffix+eagle3",)),
        Way("tree of 16", sources=("suffix+recycling+eagle3-tree",), num_draft_tokens=16),
        Way("target-only", target_only=True),
    ]
    async with AsyncExitStack() as exits:
        exits.enter_context(cancelled_by_signals(console))
        with _spinner(console) as progress:
            progress.add_task("starting verifier, drafter and orchestrator")
            began = time.monotonic()
            stack = await exits.enter_async_context(run_stack(options))
            client = await exits.enter_async_context(Client(stack.orchestrator.address))
            await wait_paired(client)
        ready = f"three services ready in {time.monotonic() - began:.1f} s; "
        console.print(ready, legend(console), "\n", sep="")
        differing = 0
        for prompt in PROMPTS[:num_prompts]:
            console.rule(Text(prompt, "bold"))
            texts = [
                await _answer(console, client, prompt, way, max_tokens, shown=way is ways[0])
                for way in ways
            ]
            differing += len(set(texts)) - 1
            same = "all ways gave the same answer" if len(set(texts)) == 1 else "DIFFERENT"
            console.print(f"\n{same}\n", style="dim")
    console.print(_summary(ways, num_prompts))
    console.print(NOTES, style="dim")
    if differing:
        raise SystemExit("an answer differed from target-only; that is a fault")


async def _answer(
    console: Console, client: Client, prompt: str, way: Way, max_tokens: int, *, shown: bool
) -> str:
    """Run one request, print its stream where asked for, and return its text."""
    request = generate_request(
        [("user", prompt)],
        SamplingParams(temperature=0.0, max_tokens=max_tokens),
        target_only=way.target_only,
        sources=way.sources,
        num_draft_tokens=way.num_draft_tokens,
        cache_salt=way.name,  # every way reads the prompt itself, so that first tokens compare
    )
    text = ""
    began = time.monotonic()
    first: float | None = None
    async for response in client.stream(request):
        if response.WhichOneof("kind") == "chunk":
            first = first or time.monotonic()
            text += response.chunk.text
            if shown:
                print_chunk(console, response.chunk)
        else:
            assert first is not None
            way.add(response.complete, first - began, time.monotonic() - began)
    return text


def _models(console: Console, folder: Path) -> tuple[Path, Path]:
    # Imported late: conversion needs torch and transformers, nothing else here does.
    from outrider.checkpoints import prepare

    with _spinner(console) as progress:
        progress.add_task(f"demo models in {folder} (made once, about half a minute)")
        prepared = prepare(folder)
    return prepared.target, prepared.best


def _spinner(console: Console) -> Progress:
    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
        console=console,
    )


def _summary(ways: list[Way], num_prompts: int) -> Table:
    table = Table(title=f"{num_prompts} prompts, greedy", box=box.SIMPLE)
    table.add_column("drafts from")
    headers = ("tokens", "passes", "saved", "accepted", "length", "first token", "per token")
    for header in headers:
        table.add_column(header, justify="right")
    for way in ways:
        table.add_row(*way.row(num_prompts))
    return table
