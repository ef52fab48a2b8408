"""What drafting ahead for several outcomes of a verification is worth.

``python -m bench.outcomes``. First over workers that sleep: what drafting and network add to a
cycle whose pre-drafts fit into the verification. Then with the default models: how often the
outcome that happened was prepared for, by how many were.
"""

import argparse
import asyncio
import statistics
from collections import Counter
from dataclasses import dataclass, field

from bench.intervals import cycle_intervals
from bench.report import print_table, write_report
from outrider.checkpoints import Prepared, prepare
from outrider.cli.pairing import wait_paired
from outrider.cli.stack import StackOptions, run_stack
from outrider.client import Client, generate_request
from outrider.questions import Question, load_questions
from outrider.sampling import SamplingParams
from outrider.v1 import generation_pb2 as pb

NUM_DRAFT_TOKENS = 4
TEMPERATURES = (0.0, 0.8)

# As a large target on a GPU, and a draft model beside it. The drafter is wrong at every fifth
# position, so a draft of four that begins behind one is right and the guess behind it is wrong:
# one outcome always misses, and two always hit.
VERIFY_MS, DRAFT_MS, DRAFT_ROW_MS = 40.0, 10.0, 0.1
WRONG_EVERY = NUM_DRAFT_TOKENS + 1
SLEEPING_OUTCOMES = ("1", "2", "5", "auto")
WARM_UP_CYCLES = 20


def hit_rate(blocks: Counter[str]) -> float:
    """Return the share of cycles whose draft was made ahead, of those that wanted one."""
    wanted = blocks["hit"] + blocks["miss"] + blocks["late"]
    return blocks["hit"] / max(wanted, 1)


def blocks_of(receipt: pb.Receipt) -> Counter[str]:
    """Return what came of a request's blocks."""
    return Counter({each.reason: each.count for each in receipt.draft_blocks})


@dataclass(frozen=True, slots=True)
class Slept:
    """One stream over workers that sleep: the time of its cycles, and what came of its blocks."""

    cycle_ms: float
    blocks: Counter[str]

    @property
    def share(self) -> float:
        """Share of a cycle that is not the verification's pass."""
        return 1 - VERIFY_MS / self.cycle_ms


async def sleep_through(max_outcomes: str, num_cycles: int) -> Slept:
    """Run one stream."""
    options = StackOptions(
        verifier_flags=[("--role", "verifier", "--compute-ms", str(VERIFY_MS))],
        drafter_flags=[
            (
                *("--role", "drafter", "--compute-ms", str(DRAFT_MS)),
                *("--row-ms", str(DRAFT_ROW_MS), "--wrong-every", str(WRONG_EVERY)),
            )
        ],
        orchestrator_flags=("--max-outcomes", max_outcomes, "--no-lookup-on-miss"),
        worker_module="bench.sleeping",
    )
    async with run_stack(options) as stack, Client(stack.orchestrator.address) as client:
        await wait_paired(client)
        request = generate_request(
            [1, 2, 3, 4],
            SamplingParams(temperature=0.0, max_tokens=WRONG_EVERY * (num_cycles + WARM_UP_CYCLES)),
            sources=("model",),
            num_draft_tokens=NUM_DRAFT_TOKENS,
        )
        intervals, receipt = await cycle_intervals(client, request)
    return Slept(statistics.median(intervals[WARM_UP_CYCLES:]) * 1e3, blocks_of(receipt))


@dataclass(slots=True)
class Answered:
    """Receipts of all questions at one temperature, added up."""

    blocks: Counter[str] = field(default_factory=Counter)
    receipts: list[pb.Receipt] = field(default_factory=list)
    num_tokens: int = 0

    def add(self, complete: pb.GenerateComplete) -> None:
        """Take an answer in."""
        self.blocks += blocks_of(complete.receipt)
        self.receipts.append(complete.receipt)
        self.num_tokens += complete.completion_tokens

    @property
    def tokens_per_s(self) -> float:
        """Tokens after the first over the time after the first."""
        total_ms = sum(each.total_ms - each.ttft_ms for each in self.receipts)
        return (self.num_tokens - len(self.receipts)) / max(total_ms / 1e3, 1e-9)

    def per_pass(self, name: str) -> float:
        """Return a time of the receipts per target pass, in ms."""
        num_passes = sum(each.num_target_passes for each in self.receipts)
        return sum(float(getattr(each, name)) for each in self.receipts) / max(num_passes, 1)


async def answer_all(
    max_outcomes: str, questions: list[Question], prepared: Prepared, options: argparse.Namespace
) -> dict[float, Answered]:
    """Answer the questions at every temperature, one stream."""
    stack_options = StackOptions(
        verifier_flags=[("--model", str(prepared.target))],
        drafter_flags=[("--model", str(prepared.draft))],
        orchestrator_flags=(
            *("--max-outcomes", max_outcomes, "--draft-wait-ms", "1000"),
            "--no-lookup-on-miss",
        ),
    )
    found = {temperature: Answered() for temperature in TEMPERATURES}
    async with run_stack(stack_options) as stack, Client(stack.orchestrator.address) as client:
        await wait_paired(client)
        for question in questions:
            for temperature, answered in found.items():
                request = generate_request(
                    [("user", question.text)],
                    SamplingParams(temperature=temperature, max_tokens=options.tokens, seed=7),
                    sources=(options.source,),
                    num_draft_tokens=NUM_DRAFT_TOKENS,
                )
                output = await client.generate(request, timeout_s=600)
                answered.add(output.complete)
    return found


async def run(options: argparse.Namespace) -> None:
    """Measure and report."""
    slept = {each: await sleep_through(each, options.cycles) for each in SLEEPING_OUTCOMES}
    print_table(
        f"cycles over sleeping workers: verification {VERIFY_MS:.0f} ms, draft {DRAFT_MS:.0f} ms",
        ("outcomes", "hit rate", "cycle ms", "beyond the pass"),
        [
            (each, f"{hit_rate(one.blocks):.3f}", f"{one.cycle_ms:.2f}", f"{one.share:.1%}")
            for each, one in slept.items()
        ],
    )
    prepared, questions = prepare(), load_questions(options.questions)
    answered = {
        each: await answer_all(each, questions, prepared, options) for each in options.outcomes
    }
    for temperature in TEMPERATURES:
        print_table(
            f"{options.source}, K = {NUM_DRAFT_TOKENS}, temperature {temperature}: "
            f"{len(questions)} questions, {options.tokens} tokens",
            ("outcomes", "hit rate", "late", "blocks unused", "wait ms", "verify ms", "tok/s"),
            [row(each, found[temperature]) for each, found in answered.items()],
        )
    summary = {f"share_beyond_pass_{each}": one.share for each, one in slept.items()}
    summary |= {
        f"hit_rate_t{temperature}_{each}": hit_rate(found[temperature].blocks)
        for each, found in answered.items()
        for temperature in TEMPERATURES
    }
    details: dict[str, object] = {
        f"sleeping, {each}": {"blocks": one.blocks, "cycle_ms": one.cycle_ms}
        for each, one in slept.items()
    }
    details |= {
        f"{options.source}, {each}, temperature {temperature}": {
            "blocks": found[temperature].blocks,
            "tokens_per_s": found[temperature].tokens_per_s,
            "draft_wait_ms_per_pass": found[temperature].per_pass("draft_ms"),
            "verify_ms_per_pass": found[temperature].per_pass("verify_ms"),
        }
        for each, found in answered.items()
        for temperature in TEMPERATURES
    }
    print(write_report("outcomes", summary, details))


def row(name: str, answered: Answered) -> tuple[str, ...]:
    """Return a line of the table."""
    blocks = answered.blocks
    wanted = max(blocks["hit"] + blocks["miss"] + blocks["late"], 1)
    return (
        name,
        f"{hit_rate(blocks):.2f}",
        f"{blocks['late'] / wanted:.2f}",
        str(blocks["stale"]),
        f"{answered.per_pass('draft_ms'):.1f}",
        f"{answered.per_pass('verify_ms'):.1f}",
        f"{answered.tokens_per_s:.1f}",
    )


def main() -> None:
    """Parse flags and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cycles", type=int, default=150, help="cycles over sleeping workers")
    parser.add_argument("--questions", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=48, help="longest answer")
    parser.add_argument("--source", default="model", help="draft source of the real models")
    parser.add_argument("--outcomes", nargs="+", default=["1", "2", "4", "8"])
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
