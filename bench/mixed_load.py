"""A mixed load without drafts, with drafts for all, and as a policy made of that says.

``python -m bench.mixed_load`` replays the same arrivals four times against one orchestrator, which
reads each policy in turn: all target-only, drafts for every class (the trial), drafts for the
classes that gained in the trial, and all target-only again, so that a machine that becomes slower
or faster meanwhile is seen and weighs on both sides. A third of every class asks for target-only
itself and is the control. Receipts, policies and what is checked go to ``build/mixed-load``, and
``outrider report`` makes a page of them. By default workers sleep (``bench.sleeping_fleet``), so
that what gains can be calculated; with ``--real`` SmolLM2-135M-Instruct answers.
"""

import argparse
import asyncio
import csv
import json
import signal
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path

from bench.mixed import checks
from bench.mixed.classes import REAL, SLEEPING, LoadClass
from bench.mixed.policies import policy_text
from bench.mixed.replay import Answered, replay
from bench.mixed.schedule import Arrival, schedule
from bench.report import num_cores, print_table, processor
from outrider.cli.pairing import wait_paired
from outrider.cli.stack import Service
from outrider.client import Client
from outrider.packet.correctness import FAIL, Evidence
from outrider.packet.finished import Finished, finished
from outrider.packet.matrix import Worth, worth_by_class
from outrider.receipts import read_receipts
from outrider.v1 import generation_pb2 as pb

FOLDER = Path("build/mixed-load")
BASELINE, TRIAL, POLICY, AGAIN = "target-only", "trial", "policy", "target-only-again"
PRIORITY_BUDGET = 0.1
# As a small model on a GPU: a pass reads the weights, and every row adds a little.
VERIFY = ("--compute-ms", "20", "--row-ms", "0.4")
DRAFT = ("--compute-ms", "4", "--row-ms", "0.8")
RELOAD_S, SETTLE_S = 10.0, 0.5


@dataclass(slots=True)
class Mixed:
    """One load against running services, and what has come of it so far."""

    orchestrator: Service
    client: Client
    classes: Sequence[LoadClass]
    arrivals: Sequence[Arrival]
    folder: Path
    lookup: bool
    answers: dict[str, list[Answered]] = field(default_factory=dict)

    @property
    def policy_file(self) -> Path:
        """What the orchestrator reads."""
        return self.folder / "policy.yaml"

    @property
    def log(self) -> Path:
        """Where it writes receipts."""
        return self.folder / "receipts.jsonl"

    def receipts(self, name: str) -> Path:
        """Where those of a run are kept."""
        return self.folder / f"{name}.jsonl"

    async def run(
        self, name: str, enabled: Sequence[str], *, all_target_only: bool = False
    ) -> list[Finished]:
        """Replay the arrivals under a policy; return the requests that were completed."""
        self.receipts(name).unlink(missing_ok=True)
        self.policy_file.write_text(policy_text(name, self.classes, enabled, lookup=self.lookup))
        await self._reload(name)
        print(f"{name}: {len(self.arrivals)} requests", flush=True)
        self.answers[name] = await replay(
            self.client, self.arrivals, name, all_target_only=all_target_only
        )
        await self._until_written(len(self.arrivals))
        self.log.rename(self.receipts(name))
        return finished(read_receipts(self.receipts(name)))

    async def _reload(self, version: str) -> None:
        """Let the orchestrator read the policy and open a new log.

        Raises: TimeoutError if the policy is not in force soon.
        """
        assert self.orchestrator.process is not None
        self.orchestrator.process.send_signal(signal.SIGHUP)
        async with asyncio.timeout(RELOAD_S):
            while True:
                info = await self.client.stub.GetServerInfo(pb.GetServerInfoRequest())
                if info.policy.version == version:
                    return
                await asyncio.sleep(0.05)

    async def _until_written(self, num_receipts: int) -> None:
        """Wait until all receipts are in the file, for no longer than a disk may take."""
        until_s = time.monotonic() + RELOAD_S
        while time.monotonic() < until_s:
            if self.log.exists() and len(self.log.read_bytes().splitlines()) >= num_receipts:
                return
            await asyncio.sleep(0.1)


@asynccontextmanager
async def services(
    folder: Path, workers: Sequence[Service], temporary: Path
) -> AsyncIterator[tuple[Service, Client]]:
    """Start the workers, verifiers first, and an orchestrator that reads policy and log there."""
    arguments = ("--policy", str(folder / "policy.yaml"), "--receipt-log")
    log_path = folder / "orchestrator.log"
    orchestrator = Service("orchestrator", "orchestrator", (), temporary, log_path)
    try:
        await asyncio.gather(*(worker.start() for worker in workers))
        orchestrator.arguments = (
            *("--verifier", workers[0].address, "--drafter", workers[1].address),
            *(*arguments, str(folder / "receipts.jsonl")),
            *("--priority-budget", str(PRIORITY_BUDGET), "--min-step-timeout-s", "60"),
        )
        await orchestrator.start()
        await orchestrator.wait_ready(timeout_s=300)
        async with Client(orchestrator.address) as client:
            await wait_paired(client, timeout_s=120)
            yield orchestrator, client
    finally:
        for each in (orchestrator, *reversed(workers)):
            await each.stop()


def sleeping_workers(folder: Path, temporary: Path, num_verifiers: int) -> list[Service]:
    """Return workers that sleep, not started yet."""
    fleet = ("--workers", str(num_verifiers), "--role")
    return [
        Service(
            name,
            "bench.sleeping_fleet",
            (*fleet, role, *times),
            temporary,
            folder / f"{name}.log",
        )
        for name, role, times in (
            ("verifiers", "verifier", VERIFY),
            ("drafters", "drafter", DRAFT),
        )
    ]


def real_workers(folder: Path, temporary: Path) -> tuple[list[Service], str]:
    """Return workers with the default models, and what they run."""
    from outrider.checkpoints import prepare

    prepared = prepare()
    models = {"verifier": prepared.target, "drafter": prepared.best}
    workers = [
        Service(role, f"{role}_svc", ("--model", str(model)), temporary, folder / f"{role}.log")
        for role, model in models.items()
    ]
    return workers, f"{prepared.target.name}, drafter {prepared.best.name}"


async def measure(options: argparse.Namespace) -> int:
    """Run all four, check, write; return 1 if a check failed."""
    folder: Path = options.out
    classes = REAL if options.real else SLEEPING
    arrivals = schedule(classes, per_s=options.per_s, span_s=options.span_s, seed=options.seed)
    (folder / "policy.yaml").write_text(policy_text("start", classes, [], lookup=options.real))
    (folder / "receipts.jsonl").unlink(missing_ok=True)
    with tempfile.TemporaryDirectory(prefix="outrider-") as name:
        temporary = Path(name)
        if options.real:
            workers, what = real_workers(folder, temporary)
        else:
            workers = sleeping_workers(folder, temporary, options.verifiers)
            what = (
                f"{options.verifiers} verifiers that sleep {VERIFY[1]} ms a pass and {VERIFY[3]} "
                f"ms a row, drafters {DRAFT[1]} ms and {DRAFT[3]} ms a token"
            )
        async with services(folder, workers, temporary) as (orchestrator, client):
            mixed = Mixed(orchestrator, client, classes, arrivals, folder, lookup=options.real)
            baseline = await mixed.run(BASELINE, [], all_target_only=True)
            trial = worth_by_class(await mixed.run(TRIAL, [each.name for each in classes]))
            enabled = [name for name, worth in trial.items() if worth.verdict == "gains"]
            requests = await mixed.run(POLICY, enabled)
            again = await mixed.run(AGAIN, [], all_target_only=True)
    found = worth_by_class(requests)
    evidence = [
        checks.completed(mixed.answers),
        checks.enabled_are_those_that_gained(enabled, trial, classes),
        checks.others_have_no_drafts(enabled, [each for each in requests if not each.is_control]),
        checks.enabled_gain(enabled, found),
        checks.protected_is_not_delayed(
            max(classes, key=lambda each: each.priority),
            requests,
            (baseline, again),
            PRIORITY_BUDGET,
        ),
        checks.clients_see_what_receipts_say(mixed.answers[POLICY], requests),
    ]
    facts = {
        "load": f"{len(arrivals)} requests in {options.span_s:g} s, Poisson arrivals, seed "
        f"{options.seed}; a third of each class is the control",
        "models": what,
        "machine": f"{processor()}, {num_cores()} cores",
    }
    write(folder, facts, evidence, mixed.answers)
    show(trial, found, evidence)
    return int(any(each.verdict == FAIL for each in evidence))


def write(
    folder: Path,
    facts: dict[str, str],
    evidence: Sequence[Evidence],
    answers: dict[str, list[Answered]],
) -> None:
    """Write what was checked, and what clients saw."""
    told = {"facts": facts, "checks": [asdict(each) for each in evidence]}
    (folder / "load.json").write_text(json.dumps(told, indent=1) + "\n")
    with (folder / "clients.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(
            ("run", "request_id", "class", "language", "is_control", "due_s", "late_ms")
            + ("status", "num_tokens", "ttft_ms", "total_ms")
        )
        for name, run in answers.items():
            for each in run:
                arrival = each.arrival
                writer.writerow(
                    (name, each.request_id, arrival.of.name, arrival.language, arrival.is_control)
                    + (f"{arrival.at_s:.3f}", f"{each.late_ms:.1f}", each.status, each.num_tokens)
                    + (f"{each.ttft_ms:.1f}", f"{each.total_ms:.1f}")
                )
    print(folder / "load.json")


def show(trial: dict[str, Worth], found: dict[str, Worth], evidence: Sequence[Evidence]) -> None:
    """Print the tables."""
    headers = ("class", "run", "requests", "control", "drafted", "length", "gain", "verdict")
    rows = [
        (
            name,
            run,
            str(worth.num_decided),
            str(worth.num_control),
            f"{worth.draft_share:.0%}",
            f"{worth.mean_acceptance_length:.2f}",
            "–"
            if worth.gain is None
            else f"{worth.gain.value:.2f} ({worth.gain.low:.2f}-{worth.gain.high:.2f})",
            worth.verdict,
        )
        for run, by_class in ((TRIAL, trial), (POLICY, found))
        for name, worth in by_class.items()
    ]
    print_table("tokens per second over the control", headers, rows)
    for each in evidence:
        print(f"{each.verdict}: {each.name}: {each.finding}")


def main() -> None:
    """Parse flags and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--real", action="store_true", help="real models in place of sleep")
    parser.add_argument("--per-s", type=float, help="requests a second; 3 asleep, 0.5 real")
    parser.add_argument("--span-s", type=float, help="seconds of arrivals; 60 asleep, 300 real")
    parser.add_argument("--verifiers", type=int, default=2, help="verifiers that sleep")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=FOLDER)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    options.per_s = options.per_s or (0.5 if options.real else 3.0)
    options.span_s = options.span_s or (300.0 if options.real else 60.0)
    raise SystemExit(asyncio.run(measure(options)))


if __name__ == "__main__":
    main()
