"""What drafters cost that are of no use, once they have been switched off.

``python -m bench.off_switch``: streams side by side over workers that sleep, target-only against
chosen draft lengths, with a drafter that is always wrong and one that is too slow. Rounds
alternate, since machines are noisy; the ratio of each pair is reported with its spread.
"""

import argparse
import asyncio
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from bench.report import print_table, write_report
from outrider.cli.pairing import wait_paired
from outrider.cli.stack import StackOptions, run_stack
from outrider.client import Client, generate_request
from outrider.sampling import SamplingParams

NUM_STREAMS = 16
# As an 8B target on one GPU: a pass reads the weights, and every row adds a little.
VERIFY = ("--compute-ms", "25", "--row-ms", "0.5")
DRAFTERS = {
    "useless": ("--compute-ms", "5", "--row-ms", "2", "--is-wrong"),
    "slow": ("--compute-ms", "250"),
}
# The slow one is right, but a single token is not worth such a wait.
FLAGS = {"useless": (), "slow": ("--max-draft-tokens", "1", "--draft-wait-ms", "1000")}
NO_SPIN = ("--spin-ms", "0")  # busy waits of so many streams would fill the machine


@dataclass(frozen=True, slots=True)
class Round:
    """All streams once: their rate, and why cycles asked for as many draft tokens as they did."""

    tokens_per_s: float
    reasons: Counter[str]


async def play(client: Client, num_tokens: int, *, speculate: bool) -> Round:
    """Run all streams side by side."""

    async def stream(index: int) -> Counter[str]:
        request = generate_request(
            [1, 2, 3, 4 + index],
            SamplingParams(temperature=0.0, max_tokens=num_tokens),
            target_only=not speculate,
            sources=("model",) if speculate else (),
        )
        output = await client.generate(request)
        reasons = output.complete.receipt.draft_lengths.reasons
        return Counter({each.reason: each.count for each in reasons})

    began = time.perf_counter()
    counted = await asyncio.gather(*map(stream, range(NUM_STREAMS)))
    elapsed_s = time.perf_counter() - began
    return Round(NUM_STREAMS * num_tokens / elapsed_s, sum(counted, Counter()))


async def measure(name: str, num_rounds: int, num_tokens: int) -> tuple[list[float], Counter[str]]:
    """Return the rate of chosen lengths over that of target-only, by round, after the switch-off,
    and the reasons of all rounds."""
    options = StackOptions(
        verifier_flags=[("--role", "verifier", *VERIFY, *NO_SPIN)],
        drafter_flags=[("--role", "drafter", *DRAFTERS[name], *NO_SPIN)],
        orchestrator_flags=FLAGS[name],
        worker_module="bench.sleeping",
    )
    async with run_stack(options) as stack, Client(stack.orchestrator.address) as client:
        await wait_paired(client)
        warm = await play(client, num_tokens, speculate=True)
        assert warm.reasons["switched_off"], f"{name} was not switched off: {warm.reasons}"
        ratios, reasons = [], Counter[str]()
        for number in range(num_rounds):
            first, second = [
                await play(client, num_tokens, speculate=bool((number + turn) % 2))
                for turn in range(2)
            ]
            chosen, plain = (first, second) if number % 2 else (second, first)
            ratios.append(chosen.tokens_per_s / plain.tokens_per_s)
            reasons += chosen.reasons
    return ratios, reasons


def row(name: str, ratios: Sequence[float], reasons: Counter[str]) -> tuple[str, ...]:
    """Return a line of the table."""
    off = reasons["switched_off"] / max(reasons.total(), 1)
    spread = (f"{value:.3f}" for value in (statistics.median(ratios), min(ratios), max(ratios)))
    return (name, str(len(ratios)), *spread, f"{off:.1%}")


async def run(num_rounds: int, num_tokens: int) -> None:
    """Measure and report."""
    results = {name: await measure(name, num_rounds, num_tokens) for name in DRAFTERS}
    title = f"tokens per second over target-only, {NUM_STREAMS} streams, after the switch-off"
    headers = ("drafter", "rounds", "median", "min", "max", "cycles off")
    print_table(title, headers, [row(name, *result) for name, result in results.items()])
    summary = {f"ratio_{name}": statistics.median(ratios) for name, (ratios, _) in results.items()}
    details = {
        name: {"ratios": ratios, "reasons": dict(reasons)}
        for name, (ratios, reasons) in results.items()
    }
    print(write_report("off_switch", summary, details))


def main() -> None:
    """Parse flags and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7, help="pairs of rounds")
    parser.add_argument("--tokens", type=int, default=150, help="tokens of each stream")
    arguments = parser.parse_args()
    asyncio.run(run(arguments.rounds, arguments.tokens))


if __name__ == "__main__":
    main()
