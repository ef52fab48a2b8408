"""What one orchestrator carries: cycles per CPU second, latency under load, and what it refuses.

``python -m bench.scale``: 64 and 256 streams over four verifiers and four drafters that sleep
(``bench.sleeping_fleet``), then more streams than there is room for. The orchestrator, the
verifiers, the drafters and the clients are a process each, so that the CPU time of the orchestrator
is its own; it depends little on what else the machine does, the rates and latencies beside it do.
"""

import argparse
import asyncio
import json
import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from bench.overhead import quantile
from bench.report import print_table, write_report
from outrider.cli.pairing import wait_paired
from outrider.cli.stack import Service
from outrider.client import Client, generate_request
from outrider.sampling import SamplingParams
from outrider.v1 import generation_pb2 as pb

# As an 8B target on one GPU: a pass reads the weights, and every row adds a little.
VERIFY = ("--compute-ms", "25", "--row-ms", "0.5")
DRAFT = ("--compute-ms", "5", "--row-ms", "1")
NUM_WORKERS = 4
NUMS_OF_STREAMS = (64, 256)
MAX_WAITING = 64
NUM_OFFERED = 512  # beyond the streams that run already
NUM_WARM_CYCLES = 8
RAMP = 32
MAX_WARM_S, MAX_REFUSAL_S = 120.0, 60.0
NUM_TOKENS = 60_000
THREADS = ("event loop", "event_engine", "python")
LOGS = Path("build/logs")


@dataclass(slots=True)
class Streams:
    """Streams side by side, and what has come of them so far."""

    client: Client
    draft_length: int | None
    num_cycles: Counter[int] = field(default_factory=Counter)
    num_tokens: int = 0
    longest_gap_s: float = 0.0
    refusals_s: list[float] = field(default_factory=list)
    refusal_codes: Counter[str] = field(default_factory=Counter)
    _tasks: list["asyncio.Task[None]"] = field(default_factory=list)
    _came_at: dict[int, float] = field(default_factory=dict)

    def add(self, num_streams: int) -> None:
        """Start more of them."""
        first = len(self._tasks)
        new = range(first, first + num_streams)
        self._tasks += [asyncio.create_task(self._run(index)) for index in new]

    async def _run(self, index: int) -> None:
        request = generate_request(
            [1, 2, 3, 4],
            SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS),
            num_draft_tokens=self.draft_length,
        )
        began = time.monotonic()
        try:
            async for response in self.client.stream(request):
                now = time.monotonic()
                if index in self._came_at:
                    self.longest_gap_s = max(self.longest_gap_s, now - self._came_at[index])
                self._came_at[index] = now
                self.num_cycles[index] += 1
                self.num_tokens += len(response.chunk.token_ids)
        except grpc.aio.AioRpcError as error:
            self.refusals_s.append(time.monotonic() - began)
            self.refusal_codes[error.code().name] += 1

    async def ramp(self, num_streams: int) -> None:
        """Start so many, a few at a time, and wait until all have some cycles behind them.

        Raises: RuntimeError if one ends before, or does not begin.
        """
        while len(self._tasks) < num_streams:
            self.add(RAMP)
            await self._until(1)
        await self._until(NUM_WARM_CYCLES)

    async def _until(self, num_cycles: int) -> None:
        began = time.monotonic()
        while True:
            least = min(self.num_cycles[index] for index in range(len(self._tasks)))
            if least >= num_cycles:
                return
            late = time.monotonic() - began > MAX_WARM_S
            if late or any(task.done() for task in self._tasks):
                raise RuntimeError(f"a stream is at {least} cycles; codes {self.refusal_codes}")
            await asyncio.sleep(0.05)

    async def all_judged(self, num_refused: int) -> None:
        """Wait until so many are refused, for no longer than can be called an answer."""
        with suppress(TimeoutError):
            async with asyncio.timeout(MAX_REFUSAL_S):
                while len(self.refusals_s) < num_refused:  # noqa: ASYNC110
                    await asyncio.sleep(0.05)

    async def close(self) -> None:
        """End all."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of time in which all streams decode."""

    num_streams: int
    began: float
    ended: float
    num_cycles: int
    num_tokens: int
    cpu_s: float
    """Of the orchestrator's process."""
    cpu_s_by_thread: dict[str, float]
    longest_gap_s: float

    @property
    def cycles_per_cpu_s(self) -> float:
        """The measure that says how many orchestrators a load needs."""
        return self.num_cycles / self.cpu_s

    @property
    def cycles_per_s(self) -> float:
        """Of all streams together."""
        return self.num_cycles / (self.ended - self.began)


def cpu_s_by_thread(pid: int) -> dict[str, float]:
    """Return what the threads of a process have used, those of one name together."""
    used: Counter[str] = Counter()
    for task in Path(f"/proc/{pid}/task").iterdir():
        name, fields = (task / "stat").read_text().split("(", 1)[1].rsplit(")", 1)
        ticks = sum(map(int, fields.split()[11:13]))  # utime, stime: proc(5)
        # Python's threads are named after the process: the loop's is the first, grpc's poller is
        # the other that counts.
        used["event loop" if task.name == str(pid) else name] += ticks
    return {name: ticks / os.sysconf("SC_CLK_TCK") for name, ticks in used.items()}


async def watch(streams: Streams, orchestrator: Service, num_streams: int, span_s: float) -> Window:
    """Return what happens in the next seconds."""
    assert orchestrator.process is not None
    streams.longest_gap_s = 0.0
    before = cpu_s_by_thread(orchestrator.process.pid)
    began, num_cycles, num_tokens = (
        time.monotonic(),
        streams.num_cycles.total(),
        streams.num_tokens,
    )
    await asyncio.sleep(span_s)
    after = cpu_s_by_thread(orchestrator.process.pid)
    by_thread = {name: used - before.get(name, 0.0) for name, used in after.items()}
    return Window(
        num_streams=num_streams,
        began=began,
        ended=time.monotonic(),
        num_cycles=streams.num_cycles.total() - num_cycles,
        num_tokens=streams.num_tokens - num_tokens,
        cpu_s=sum(by_thread.values()),
        cpu_s_by_thread=by_thread,
        longest_gap_s=streams.longest_gap_s,
    )


@dataclass(frozen=True, slots=True)
class Flood:
    """More streams than there is room for, beside those that ran before and after."""

    before: Window
    during: Window
    refusals_s: list[float]
    codes: Counter[str]

    @property
    def pace(self) -> float:
        """Cycles per second of the running streams over what they were before."""
        return self.during.cycles_per_s / self.before.cycles_per_s


@dataclass(frozen=True, slots=True)
class Bench:
    """The services that are measured."""

    orchestrator: Service
    client: Client
    draft_length: int | None

    async def steady(self, num_streams: int, span_s: float) -> Window:
        """Return a window of so many streams."""
        streams = Streams(self.client, self.draft_length)
        try:
            await streams.ramp(num_streams)
            return await watch(streams, self.orchestrator, num_streams, span_s)
        finally:
            await streams.close()
            await self._idle()

    async def flood(self, num_streams: int, span_s: float) -> Flood:
        """Fill every slot, then offer more."""
        streams = Streams(self.client, self.draft_length)
        try:
            await streams.ramp(num_streams)
            before = await watch(streams, self.orchestrator, num_streams, span_s)
            streams.add(NUM_OFFERED)
            during, _ = await asyncio.gather(
                watch(streams, self.orchestrator, num_streams, span_s),
                streams.all_judged(NUM_OFFERED - MAX_WAITING),
            )
            return Flood(before, during, list(streams.refusals_s), streams.refusal_codes)
        finally:
            await streams.close()
            await self._idle()

    async def _idle(self) -> None:
        """Wait until the orchestrator has let go of all streams."""
        while True:
            answer = await self.client.stub.GetLoads(pb.GenerationServiceGetLoadsRequest())
            if not answer.load.num_running_reqs + answer.load.num_waiting_reqs:
                return
            await asyncio.sleep(0.1)


@asynccontextmanager
async def services(samples_file: Path, draft_length: int | None) -> AsyncIterator[Bench]:
    """Start all processes; the verifiers leave their samples when they stop."""
    folder = samples_file.parent

    def service(name: str, module: str, *flags: str) -> Service:
        return Service(name, module, flags, folder, LOGS / f"{name}.log")

    fleet = ("--workers", str(NUM_WORKERS), "--role")
    samples = ("--samples-file", str(samples_file))
    workers = [
        service("verifiers", "bench.sleeping_fleet", *fleet, "verifier", *VERIFY, *samples),
        service("drafters", "bench.sleeping_fleet", *fleet, "drafter", *DRAFT),
    ]
    orchestrator = service("orchestrator", "orchestrator")
    started = [*workers, orchestrator]
    try:
        await asyncio.gather(*(worker.start() for worker in workers))
        orchestrator.arguments = (
            *("--verifier", workers[0].address, "--drafter", workers[1].address),
            *("--max-running", str(max(NUMS_OF_STREAMS)), "--max-waiting", str(MAX_WAITING)),
        )
        await orchestrator.start()
        await orchestrator.wait_ready(timeout_s=60)
        async with Client(orchestrator.address) as client:
            await wait_paired(client)
            yield Bench(orchestrator, client, draft_length)
    finally:
        for each in reversed(started):
            await each.stop()


def added_ms(samples: Sequence[tuple[float, float]], windows: Sequence[Window]) -> list[float]:
    """Return the milliseconds that cycles in these windows spent outside their verifier."""
    return [
        1e3 * turnaround_s
        for at, turnaround_s in samples
        if any(window.began <= at < window.ended for window in windows)
    ]


def spread(values: Sequence[float], digits: int = 0) -> str:
    """Return the median with the least and the most."""
    middle, least, most = statistics.median(values), min(values), max(values)
    return f"{middle:.{digits}f} ({least:.{digits}f}-{most:.{digits}f})"


def report(
    windows: Sequence[Window], floods: Sequence[Flood], samples: Sequence[tuple[float, float]]
) -> dict[str, float]:
    """Print the tables; returns the summary."""
    rows: list[tuple[str, ...]] = []
    summary: dict[str, float] = {}
    for num_streams in NUMS_OF_STREAMS:
        own = [window for window in windows if window.num_streams == num_streams]
        if not own:
            continue
        added = added_ms(samples, own)
        per_cpu_s = [window.cycles_per_cpu_s for window in own]
        per_s = [window.cycles_per_s for window in own]
        tokens_per_s = [window.num_tokens / (window.ended - window.began) for window in own]
        p50, p99 = quantile(added, 0.5), quantile(added, 0.99)
        summary |= {
            f"cycles_per_cpu_s_{num_streams}": statistics.median(per_cpu_s),
            f"cycles_per_s_{num_streams}": statistics.median(per_s),
            f"tokens_per_s_{num_streams}": statistics.median(tokens_per_s),
            f"added_p50_ms_{num_streams}": p50,
            f"added_p99_ms_{num_streams}": p99,
        }
        measures = (spread(per_cpu_s), spread(per_s), spread(tokens_per_s))
        rows.append((str(num_streams), *measures, f"{p50:.1f}", f"{p99:.1f}"))
        num_cycles = sum(window.num_cycles for window in own)
        us_by_thread = {
            name: 1e6 * sum(window.cpu_s_by_thread.get(name, 0.0) for window in own) / num_cycles
            for name in THREADS
        }
        shares = (f"{name} {used:.0f}" for name, used in us_by_thread.items())
        print(f"{num_streams} streams, CPU microseconds per cycle by thread: {', '.join(shares)}")
    headers = ("streams", "cycles/CPU-s", "cycles/s", "tokens/s", "added p50 ms", "added p99 ms")
    print_table("one orchestrator: median (least-most) of all rounds", headers, rows)
    if floods:
        latencies = [1e3 * latency for flood in floods for latency in flood.refusals_s]
        num_refused = [flood.codes["RESOURCE_EXHAUSTED"] for flood in floods]
        num_others = [flood.codes.total() - flood.codes["RESOURCE_EXHAUSTED"] for flood in floods]
        paces = [flood.pace for flood in floods]
        summary |= {
            "offered": float(NUM_OFFERED),
            "refused": statistics.median(num_refused),
            "failed_otherwise": float(sum(num_others)),
            "refusal_p50_ms": quantile(latencies or [0.0], 0.5),
            "refusal_p99_ms": quantile(latencies or [0.0], 0.99),
            "pace_while_refusing": statistics.median(paces),
            "longest_gap_ms_before": 1e3 * max(flood.before.longest_gap_s for flood in floods),
            "longest_gap_ms_while_refusing": 1e3
            * max(flood.during.longest_gap_s for flood in floods),
        }
        print(
            f"{NUM_OFFERED} more than {max(NUMS_OF_STREAMS)}: {spread(num_refused)} refused, "
            f"{sum(num_others)} ended otherwise, answers p50 {summary['refusal_p50_ms']:.0f} ms, "
            f"p99 {summary['refusal_p99_ms']:.0f} ms; running streams at {spread(paces, 2)} of "
            f"their pace, longest gap {summary['longest_gap_ms_before']:.0f} ms before, "
            f"{summary['longest_gap_ms_while_refusing']:.0f} ms meanwhile"
        )
    return summary


async def run(options: argparse.Namespace) -> None:
    """Measure and report."""
    windows: list[Window] = []
    floods: list[Flood] = []
    with tempfile.TemporaryDirectory(prefix="outrider-") as folder:
        samples_file = Path(folder) / "samples.json"
        async with services(samples_file, options.draft_length) as bench:
            for _ in range(options.rounds):
                for num_streams in options.streams:
                    windows.append(await bench.steady(num_streams, options.span_s))
            for _ in range(options.floods):
                floods.append(await bench.flood(max(NUMS_OF_STREAMS), options.span_s))
        samples = json.loads(samples_file.read_text())
    summary = report(windows, floods, samples)
    details = {
        "windows": [
            {
                "num_streams": window.num_streams,
                "cycles_per_cpu_s": window.cycles_per_cpu_s,
                "cycles_per_s": window.cycles_per_s,
                "cpu_s": window.cpu_s,
                "cpu_s_by_thread": window.cpu_s_by_thread,
            }
            for window in windows
        ],
        "floods": [{"codes": dict(flood.codes), "pace": flood.pace} for flood in floods],
    }
    print(write_report("scale", summary, details))


def main() -> None:
    """Parse flags and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="windows of each number of streams")
    parser.add_argument("--floods", type=int, default=3, help="rounds of too many streams")
    parser.add_argument("--span-s", type=float, default=6.0, help="seconds of a window")
    parser.add_argument(
        "--streams", type=int, nargs="+", default=NUMS_OF_STREAMS, choices=NUMS_OF_STREAMS
    )
    parser.add_argument(
        "--draft-length", type=int, help="tokens of every draft; chosen by the orchestrator if none"
    )
    LOGS.mkdir(parents=True, exist_ok=True)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
