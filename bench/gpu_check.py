"""Check and measure a model of random weights on this machine's GPU: no weights, no network.

``python -m bench.gpu_check``: an 8B shape on CUDA, a tiny one where there is none.
"""

import argparse
import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from bench.parity import TEMPERATURE, Comparer, Comparison
from bench.probe import Probe, Prober, median
from bench.report import FOLDER, print_table, write_report
from bench.shapes import PAIRS, Pair, write_model
from outrider.cli.pairing import wait_paired
from outrider.cli.stack import Service, Stack, StackError, StackOptions, run_stack
from outrider.client import Client
from outrider.sampling import Mode
from outrider.serving.channel import open_channel
from outrider.v1 import common_pb2
from outrider.v1 import generation_pb2 as pb

NUM_ROWS = (1, 2, 4, 8, 16)
NUM_SEQUENCES = (8, 32)
NUM_STREAMS = (1, 8)
DRAFT_LENGTHS = (4, 8)
UNRELATED, SAME = "unrelated", "same"
# A margin that rounding overturned lies within what other rows were seen to change, with room for
# the changes that a few hundred samples do not show.
SAFETY = 2.0
# Two models of one shape draw the same weights from one seed.
TARGET_SEED, UNRELATED_SEED = 0, 1
ORCHESTRATOR_FLAGS = ("--draft-wait-ms=10000",)  # no cycle goes without its draft
READY_TIMEOUT_S = 180.0


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is generated; tokens of a prompt, probed steps, steps not counted, output tokens."""

    num_prompt_tokens: int
    num_steps: int
    num_warm_up: int
    num_tokens: int


EFFORTS = {"8b": Effort(64, 40, 8, 48), "tiny": Effort(16, 10, 3, 14)}


@dataclass(slots=True)
class Findings:
    """Everything that was measured."""

    numerics: common_pb2.Numerics = field(default_factory=common_pb2.Numerics)
    probe: Probe = field(default_factory=Probe)
    comparisons: list[Comparison] = field(default_factory=list)
    ready_s: float = 0.0

    @property
    def margin_limit(self) -> float:
        """The largest lead in logits that rounding may overturn; 0 where rows are invariant."""
        return 0.0 if self.numerics.row_invariant else SAFETY * self.probe.largest_change

    @property
    def failures(self) -> list[str]:
        """What breaks a promise, in words."""
        found = [
            f"{c.drafter}, {c.mode.name.lower()}, {c.num_streams} streams, K = "
            f"{c.num_draft_tokens}: ids differ beyond rounding, or nothing was drafted"
            for c in self.comparisons
            if not c.is_ok
        ]
        probe = self.probe
        if self.numerics.row_invariant and probe.largest_change > 0:
            found.append("the verifier claims invariant rows, but a margin depends on other rows")
        if median(probe.changes) > median(probe.margins):
            found.append("rounding moves margins by more than the margins themselves")
        guessed = [c for c in self.comparisons if c.drafter == SAME]
        if self.numerics.row_invariant and any(c.acceptance_rate < 1 for c in guessed):
            found.append("a drafter with the target's own weights was rejected")
        return found

    def acceptance_rate(self, drafter: str) -> float:
        """Accepted over verified draft tokens of all comparisons with this drafter."""
        mine = [c for c in self.comparisons if c.drafter == drafter]
        return sum(c.num_accepted for c in mine) / max(sum(c.num_verified for c in mine), 1)

    def per_cycle(self, name: str) -> list[float]:
        """Return ``overhead_ms`` or ``network_ms`` of every request that ran alone."""
        alone = [c for c in self.comparisons if c.num_streams == 1]
        return [value for c in alone for value in getattr(c, name)]

    def summary(self) -> dict[str, float]:
        """Return the figures that are compared from run to run."""
        differences = [each for c in self.comparisons for each in c.differences]
        return {
            "parity_ok": int(not self.failures),
            "row_invariant": int(self.numerics.row_invariant),
            "num_outputs": sum(c.num_streams for c in self.comparisons),
            "num_outputs_equal": sum(c.num_equal for c in self.comparisons),
            "num_outputs_rounding": sum(each.is_promised for each in differences),
            "acceptance_same": self.acceptance_rate(SAME),
            "acceptance_unrelated": self.acceptance_rate(UNRELATED),
            "margin_p50": median(self.probe.margins),
            "margin_change_max": self.probe.largest_change,
            **{f"pass_ms_{n}": median(ms) for n, ms in self.probe.pass_ms.items()},
            **{
                f"pass_ms_{n}_sequences": median(ms)
                for n, ms in self.probe.sequences_pass_ms.items()
            },
            "cycle_overhead_ms_p50": median(self.per_cycle("overhead_ms")),
            "cycle_network_ms_p50": median(self.per_cycle("network_ms")),
            "ready_s": self.ready_s,
        }

    def details(self) -> dict[str, object]:
        """Return the figures behind the summary."""
        return {
            "numerics": {
                name: getattr(self.numerics, name) for name in ("dtype", "device", "kernels")
            },
            "failures": self.failures,
            "margin_changes": self.probe.changes,
            "num_flips": self.probe.num_flips,
            "rows_seen": {n: median(rows) for n, rows in self.probe.sequences_rows.items()},
            "comparisons": [
                {
                    "drafter": c.drafter,
                    "mode": c.mode.name.lower(),
                    "num_streams": c.num_streams,
                    "num_draft_tokens": c.num_draft_tokens,
                    "acceptance_rate": c.acceptance_rate,
                    "num_cycles": c.num_cycles,
                    "num_cycles_saved": c.num_cycles_saved,
                    "differences": [[d.position, d.lead, d.is_promised] for d in c.differences],
                }
                for c in self.comparisons
            ],
        }


async def check(
    pair: Pair, effort: Effort, *, device: str, dtype: str, log_folder: Path
) -> Findings:
    """Probe the verifier, then compare with an unrelated drafter and with one that guesses right.

    Raises: StackError if a service does not come up.
    """
    findings = Findings()
    with tempfile.TemporaryDirectory(prefix="outrider-shapes-") as name:
        target = write_model(Path(name) / "target", pair.target)
        draft = write_model(Path(name) / "draft", pair.draft)
        options = StackOptions(
            verifier_flags=[_flags(target, TARGET_SEED, device=device, dtype=dtype)],
            drafter_flags=[_flags(draft, UNRELATED_SEED, device=device, dtype=dtype)],
            orchestrator_flags=ORCHESTRATOR_FLAGS,
            log_folder=log_folder,
            ready_timeout_s=READY_TIMEOUT_S,
        )
        same = Service(
            "drafter-1",
            "drafter_svc",
            _flags(target, TARGET_SEED, device=device, dtype=dtype),
            Path(name),
            log_folder / "drafter-1.log",
        )
        log_folder.mkdir(parents=True, exist_ok=True)  # noqa: ASYNC240 - nothing else runs yet
        began = time.monotonic()
        async with (
            _starting(same) as started,
            run_stack(options) as stack,
            _channel(stack.verifiers[0].address) as verifier,
        ):
            findings.ready_s = time.monotonic() - began
            async with Client(stack.orchestrator.address) as client:
                await wait_paired(client)  # until then its own passes join those that are timed
            prober = Prober(
                verifier,
                vocab_size=pair.target.vocab_size,
                num_prompt_tokens=effort.num_prompt_tokens,
                num_steps=effort.num_steps,
                num_warm_up=effort.num_warm_up,
            )
            findings.probe = await prober.run(NUM_ROWS, NUM_SEQUENCES)
            prompts = [prober.prompt(100 + index) for index in range(max(NUM_STREAMS))]

            async def compare(orchestrator: str, drafter: str) -> None:
                async with Client(orchestrator) as client:
                    findings.numerics = _numerics(await wait_paired(client))
                    comparer = Comparer(
                        client,
                        verifier,
                        drafter=drafter,
                        prompts=prompts,
                        num_tokens=effort.num_tokens,
                        margin_limit=findings.margin_limit,
                    )
                    for mode in (Mode.GREEDY, Mode.COUPLED):
                        for num_streams in NUM_STREAMS:
                            findings.comparisons += await comparer.run(
                                mode, num_streams=num_streams, lengths=DRAFT_LENGTHS
                            )

            await compare(stack.orchestrator.address, UNRELATED)
            await started
            async with _orchestrator(stack, same, Path(name), log_folder) as address:
                await compare(address, SAME)
    return findings


@asynccontextmanager
async def _starting(service: Service) -> AsyncIterator["asyncio.Task[None]"]:
    """Start a service in the background; yield the task that ends when it is ready."""

    async def start() -> None:
        await service.start()
        await service.wait_ready(timeout_s=READY_TIMEOUT_S)

    task = asyncio.create_task(start())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])
        await service.stop()


@asynccontextmanager
async def _orchestrator(
    stack: Stack, drafter: Service, folder: Path, log_folder: Path
) -> AsyncIterator[str]:
    """Run an orchestrator that knows no other drafter; yield its address."""
    workers = (f"--verifier={stack.verifiers[0].address}", f"--drafter={drafter.address}")
    name = "orchestrator-1"
    service = Service(
        name, "orchestrator", (*workers, *ORCHESTRATOR_FLAGS), folder, log_folder / f"{name}.log"
    )
    async with _starting(service) as started:
        await started
        yield service.address


@asynccontextmanager
async def _channel(address: str) -> AsyncIterator[grpc.aio.Channel]:
    channel = open_channel(address)
    try:
        yield channel
    finally:
        await channel.close()


def _flags(folder: Path, seed: int, *, device: str, dtype: str) -> tuple[str, ...]:
    weights = (f"--model={folder}", "--load-format=dummy", f"--dummy-seed={seed}")
    flags = (*weights, f"--device={device}", f"--dtype={dtype}")
    # Workers share the cores of a CPU: threads that wait for each other would measure that.
    return (*flags, "--num-threads=1") if device == "cpu" else flags


def _numerics(workers: Sequence[pb.WorkerInfo]) -> common_pb2.Numerics:
    for worker in workers:
        if worker.state != "ready":
            raise StackError(f"{worker.role} {worker.address} is {worker.state}: {worker.reason}")
    return next(worker.identity.numerics for worker in workers if worker.role == "verifier")


def print_findings(findings: Findings, title: str) -> None:
    """Print what a person wants to see."""
    numerics, probe = findings.numerics, findings.probe
    rows = [(f"1 sequence, {n} rows", n, ms) for n, ms in probe.pass_ms.items()]
    rows += [
        (f"{n} sequences, 1 row each", round(median(probe.sequences_rows[n])), ms)
        for n, ms in probe.sequences_pass_ms.items()
    ]
    alone = median(probe.pass_ms[1])
    print_table(
        f"{title}: one pass of the target ({numerics.dtype}, {numerics.kernels})",
        ("pass", "rows seen", "verdicts", "median ms", "of one row"),
        [
            (what, str(seen), str(len(ms)), f"{median(ms):.2f}", f"{median(ms) / alone:.2f}")
            for what, seen, ms in rows
        ],
    )
    print_table(
        "speculation against target-only",
        ("drafter", "mode", "streams", "K", "equal", "from", "lead", "accepted", "saved"),
        [
            (
                c.drafter,
                c.mode.name.lower(),
                str(c.num_streams),
                str(c.num_draft_tokens),
                f"{c.num_equal}/{c.num_streams}",
                *_differing(c),
                f"{c.acceptance_rate:.1%}",
                str(c.num_cycles_saved),
            )
            for c in findings.comparisons
        ],
    )
    print_table(
        "beyond the passes, per cycle of one stream in ms (median of requests)",
        ("what", "requests", "ms"),
        [
            (what, str(len(values)), f"{median(values):.2f}")
            for what, values in (
                ("wall - verify - draft", findings.per_cycle("overhead_ms")),
                ("network", findings.per_cycle("network_ms")),
            )
        ],
    )
    if numerics.row_invariant:
        print("promised: equal ids, since a row's bits do not depend on the other rows of a pass")
    else:
        print(
            f"promised: equal ids up to a token whose lead is at most {findings.margin_limit:.3g} "
            f"logits (coupled: {findings.margin_limit / TEMPERATURE:.3g}), since other rows in a "
            f"pass were seen to move a lead by {probe.largest_change:.3g}"
        )
    for failure in findings.failures:
        print(f"FAILED: {failure}")


def _differing(comparison: Comparison) -> tuple[str, str]:
    """Return the first place where an output differs, and the largest lead that was overturned."""
    found = comparison.differences
    if not found:
        return "-", "-"
    lead = f"{max(each.lead for each in found):.2g}"
    fails = "" if all(each.is_promised for each in found) else " FAILS"
    return str(min(each.position for each in found)), lead + fails


def cuda_name() -> str:
    """Return the name of the GPU; empty where torch sees none."""
    import torch  # takes seconds, and who names a device need not ask

    return torch.cuda.get_device_name() if torch.cuda.is_available() else ""


def main() -> int:
    """Parse flags and run; the exit code is 1 if a promise is broken or a service fails."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", help="cpu, cuda or cuda:N; by default cuda where there is one")
    parser.add_argument("--shape", choices=sorted(PAIRS), help="by default 8b on cuda, else tiny")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="where the report goes")
    parser.add_argument("--timeout-s", type=float, default=460.0, help="give up after this long")
    arguments = parser.parse_args()
    device = arguments.device or ("cuda" if cuda_name() else "cpu")
    shape = arguments.shape or ("tiny" if device == "cpu" else "8b")

    async def run() -> Findings:
        async with asyncio.timeout(arguments.timeout_s):
            return await check(
                PAIRS[shape],
                EFFORTS[shape],
                device=device,
                dtype=arguments.dtype,
                log_folder=arguments.folder / "gpu_check_logs",
            )

    began = time.monotonic()
    try:
        findings = asyncio.run(run())
    except (StackError, TimeoutError) as error:
        print(f"FAILED: {error or 'not done in time'}", file=sys.stderr)
        return 1
    print_findings(findings, f"{shape} on {device}")
    details = {"shape": shape, "device": device, **findings.details()}
    summary = {**findings.summary(), "total_s": time.monotonic() - began}
    print(write_report("gpu_check", summary, details, arguments.folder))
    return 1 if findings.failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
