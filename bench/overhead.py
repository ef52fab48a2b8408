"""What a cycle costs beyond the two models' compute: orchestrator, gRPC and packing.

``python -m bench.overhead``: one stream, then several, over workers that sleep.
"""

import argparse
import asyncio
import statistics
from collections.abc import Sequence

from bench.echo import round_trip_ms
from bench.intervals import cycle_intervals
from bench.report import print_table, write_report
from outrider.cli.pairing import wait_paired
from outrider.cli.stack import StackOptions, run_stack
from outrider.client import Client, generate_request
from outrider.sampling import SamplingParams

VERIFY_MS = 20.0
DRAFT_MS = 5.0
NUM_DRAFT_TOKENS = 4
WARM_UP_CYCLES = 20


async def measure(client: Client, num_cycles: int, *, speculate: bool) -> list[float]:
    """Return the milliseconds beyond the verifier's compute of every cycle of one stream."""
    tokens_per_cycle = NUM_DRAFT_TOKENS + 1 if speculate else 1
    request = generate_request(
        [1, 2, 3, 4],
        SamplingParams(
            temperature=0.0, max_tokens=(num_cycles + WARM_UP_CYCLES) * tokens_per_cycle
        ),
        target_only=not speculate,
        sources=("model",) if speculate else (),
        num_draft_tokens=NUM_DRAFT_TOKENS if speculate else None,
    )
    intervals, receipt = await cycle_intervals(client, request)
    if speculate:
        assert receipt.draft_acceptance_rate == 1.0, "the sleeping drafter guesses right"
    return [interval * 1e3 - VERIFY_MS for interval in intervals[WARM_UP_CYCLES:]]


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which this share of the values lies."""
    ordered = sorted(values)
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


async def run(num_cycles: int) -> None:
    """Measure and report."""
    options = StackOptions(
        verifier_flags=[("--role", "verifier", "--compute-ms", str(VERIFY_MS))],
        drafter_flags=[("--role", "drafter", "--compute-ms", str(DRAFT_MS))],
        worker_module="bench.sleeping",
    )
    async with run_stack(options) as stack, Client(stack.orchestrator.address) as client:
        await wait_paired(client)
        results = {
            "speculating": await measure(client, num_cycles, speculate=True),
            "target-only": await measure(client, num_cycles, speculate=False),
        }
    bare_ms = await round_trip_ms(VERIFY_MS / 1e3, num_cycles // 2)
    rows = [
        (
            name,
            str(len(values)),
            *(f"{v:.2f}" for v in (quantile(values, 0.5), quantile(values, 0.99))),
            f"{statistics.mean(values):.2f}",
        )
        for name, values in results.items()
    ]
    title = f"overhead per cycle in ms (verify sleeps {VERIFY_MS:.0f}, draft {DRAFT_MS:.0f})"
    print_table(title, ("loop", "cycles", "p50", "p99", "mean"), rows)
    print(f"a bare bidirectional round trip after the same pause: {bare_ms:.2f} ms")
    speculating = results["speculating"]
    summary = {
        "overhead_ms_p50": quantile(speculating, 0.5),
        "overhead_ms_p99": quantile(speculating, 0.99),
        "overhead_ms_p50_target_only": quantile(results["target-only"], 0.5),
        "overhead_ms_p99_target_only": quantile(results["target-only"], 0.99),
        "bare_round_trip_ms_p50": bare_ms,
    }
    path = write_report("overhead", summary, {"overhead_ms": results})
    print(path)


def main() -> None:
    """Parse flags and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cycles", type=int, default=500, help="cycles of each loop")
    asyncio.run(run(parser.parse_args().cycles))


if __name__ == "__main__":
    main()
