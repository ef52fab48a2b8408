"""``outrider pair-check``: does this drafter pay for this target, on this machine, at what load?"""

import asyncio
import json
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc
from rich.console import Console
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from outrider import sources
from outrider.advisor.advice import (
    Advice,
    Check,
    acceptances,
    best_by_load,
    check_of,
    predictions,
    times,
)
from outrider.advisor.curves import pass_times
from outrider.advisor.report import Findings, Pair
from outrider.advisor.runs import Run, Runner, Setting
from outrider.cli.interrupts import cancelled_by_signals
from outrider.cli.pair_tables import print_findings, print_pair
from outrider.cli.pairing import wait_paired
from outrider.cli.render import plain_console
from outrider.cli.stack import StackOptions, run_stack
from outrider.client import Client
from outrider.errors import InvalidField
from outrider.questions import OWN, read_questions, spread
from outrider.v1 import generation_pb2 as pb

LOOKUPS = (
    sources.NGRAM,
    sources.SUFFIX,
    sources.RECYCLING,
    sources.COPIES,
    sources.LOOKAHEAD,
)
DEFAULT_LENGTHS = (1, 3, 7)  # with the certain token before them a power of two
DEFAULT_STREAMS = (1, 4, 16)
DEFAULT_TEMPERATURES = (0.0, 0.8)
PAYS, INCOMPATIBLE, PAYS_NOWHERE = 0, 1, 3  # exit statuses
MAX_STREAMS = 64  # the orchestrator runs no more at once unless it is told to
# Whoever drafts slowly shall be seen to: a draft that is not waited for has no acceptance.
DRAFT_WAIT_MS = 2000
STEP_TIMEOUT_S = 300


@dataclass(frozen=True, slots=True)
class PairCheckOptions:
    """What the flags say; empty ``sources`` are those that the draft is there for."""

    target: str
    draft: str
    prompts: Path | None
    json: Path | None
    sources: tuple[str, ...]
    lengths: tuple[int, ...]
    streams: tuple[int, ...]
    temperatures: tuple[float, ...]
    num_prompts: int
    max_tokens: int
    num_rounds: int
    dtype: str
    device: str

    @property
    def is_lookup(self) -> bool:
        """True where the draft is the name of a source without a model."""
        return self.draft in LOOKUPS and not Path(self.draft).exists()


def run_pair_check(options: PairCheckOptions) -> int:
    """Measure, print, write; return the exit status.

    Raises: StackError if a service does not come up; InvalidField for what the flags cannot mean.
    """
    console = plain_console()
    prompts = _prompts(options)
    with _drafter_flags(options) as drafter_flags:
        numerics = ("--dtype", options.dtype, "--device", options.device)
        stack = StackOptions(
            verifier_flags=[("--model", options.target, *numerics)],
            drafter_flags=[drafter_flags and (*drafter_flags, *numerics)],
            orchestrator_flags=(
                "--no-lookup-on-miss",
                *("--draft-wait-ms", str(DRAFT_WAIT_MS)),
                *("--max-draft-tokens", str(max(options.lengths))),
                # Nobody could take over from the only verifier, and many prompts at once take long.
                *("--min-step-timeout-s", str(STEP_TIMEOUT_S)),
            ),
        )
        findings = asyncio.run(_run(console, options, stack, prompts))
    print_findings(console, findings)
    if options.json is not None:
        options.json.write_text(json.dumps(findings.as_json(), indent=2) + "\n")
        console.print(f"written to {options.json}", soft_wrap=True)
    if not findings.pair.fits:
        return INCOMPATIBLE
    return PAYS if findings.pays else PAYS_NOWHERE


async def _run(
    console: Console, options: PairCheckOptions, stack_options: StackOptions, prompts: list[str]
) -> Findings:
    async with AsyncExitStack() as exits:
        exits.enter_context(cancelled_by_signals(console))
        console.print("starting verifier, drafter and orchestrator")
        stack = await exits.enter_async_context(run_stack(stack_options))
        client = await exits.enter_async_context(Client(stack.orchestrator.address))
        await wait_paired(client)
        info = await client.stub.GetServerInfo(pb.GetServerInfoRequest(), timeout=30)
        pair = pair_of(info, options.sources or ((options.draft,) if options.is_lookup else ()))
        print_pair(console, pair)
        if not pair.fits:
            return Findings(pair)
        columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
        described = TextColumn("{task.fields[now]}", markup=False)
        progress = exits.enter_context(Progress(*columns, described, console=console))
        as_chat = await takes_messages(client)
        runner = Runner(client, prompts, options.max_tokens, as_chat)
        return await Measurement(options, runner, progress).measure(pair)


async def takes_messages(client: Client) -> bool:
    """Return whether the target has a chat template; others are given plain texts."""
    try:
        await client.tokenize([("user", "a")])
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.INVALID_ARGUMENT:
            raise
        return False
    return True


def pair_of(info: pb.GetServerInfoResponse, wanted: Sequence[str] = ()) -> Pair:
    """Return the pair as the orchestrator judged it, with the sources that are to be measured.

    Raises: InvalidField naming a source that the drafter does not offer.
    """
    by_role = {worker.role: worker for worker in info.workers}
    verifier, drafter = by_role["verifier"], by_role["drafter"]
    reasons = [each.reason for each in info.pairs if each.reason] or [drafter.reason]
    obstacles = tuple(each for each in reasons[0].split("; ") if each)
    offered = tuple(drafter.sources)
    missing = [name for name in wanted if name not in offered]
    if missing:
        raise InvalidField("--source", f"{', '.join(missing)}: there is {', '.join(offered)}")
    own = (*sources.MODELS, *sources.HEADS)
    measured = tuple(wanted) or tuple(name for name in offered if name in own)
    return Pair(verifier.identity, drafter.identity, obstacles, measured)


@dataclass(slots=True)
class Measurement:
    """Runs everything once, then what seems to pay in turn with target-only."""

    options: PairCheckOptions
    runner: Runner
    progress: Progress
    runs: list[Run] = field(default_factory=list)

    async def measure(self, pair: Pair) -> Findings:
        """Return what was found about a pair that fits."""
        loads = [
            Setting(temperature, num_streams)
            for temperature in self.options.temperatures
            for num_streams in self.options.streams
        ]
        num_settings = len(loads) * (1 + len(pair.sources) * len(self.options.lengths))
        task = self.progress.add_task("measuring", total=num_settings, now="")
        # What is met for the first time takes longer.
        await self.runner.run(Setting(0.0, max(self.options.streams)))
        for load in loads:
            for setting in (load, *self._settings(load, pair.sources)):
                self.progress.update(task, now=describe(setting))
                self.runs.append(await self.runner.run(setting))
                self.progress.advance(task)
        accepted, cycles = acceptances(self.runs), times(self.runs)
        found = predictions(accepted, cycles)
        passes = {
            temperature: pass_times(
                run for run in self.runs if run.setting.temperature == temperature
            )
            for temperature in self.options.temperatures
        }
        advice = [Advice(best) for best in best_by_load(found)]
        checked = self.progress.add_task(
            "checking", total=sum(each.is_promising for each in advice), now=""
        )
        for index, each in enumerate(advice):
            if each.is_promising:
                self.progress.update(checked, now=describe(each.best.setting))
                advice[index] = Advice(each.best, await self._check(each.best.setting))
                self.progress.advance(checked)
        return Findings(pair, accepted, passes, cycles, found, advice)

    def _settings(self, load: Setting, names: Sequence[str]) -> Iterator[Setting]:
        for name in names:
            for length in self.options.lengths:
                yield Setting(load.temperature, load.num_streams, name, length)

    async def _check(self, setting: Setting) -> Check:
        rounds = []
        for number in range(self.options.num_rounds):
            order = (setting, setting.alone) if number % 2 else (setting.alone, setting)
            runs = {each: await self.runner.run(each, report_costs=False) for each in order}
            rounds.append((runs[setting], runs[setting.alone]))
        return check_of(rounds)


def describe(setting: Setting) -> str:
    """Return a setting in a few words."""
    streams = "1 stream" if setting.num_streams == 1 else f"{setting.num_streams} streams"
    drafts = (
        f"{setting.source}, K = {setting.num_draft_tokens}" if setting.source else "target-only"
    )
    return f"{drafts}, temperature {setting.temperature:g}, {streams}"


def _prompts(options: PairCheckOptions) -> list[str]:
    questions = OWN if options.prompts is None else read_questions(options.prompts)
    if not questions:
        raise InvalidField("--prompts", f"{options.prompts} has no prompt")
    num_prompts = min(options.num_prompts, len(questions))
    return [question.text for question in spread(questions, num_prompts)]


@contextmanager
def _drafter_flags(options: PairCheckOptions) -> Iterator[tuple[str, ...]]:
    """Give the drafter's model, put together with its target where only a trainer's files are
    there."""
    folder = Path(options.draft)
    if options.is_lookup:
        yield ()
    elif (folder / "drafter.json").is_file() and not (folder / "config.json").is_file():
        # Imported late: only this way needs torch in the process of the command line.
        from outrider.checkpoints.heads import assemble_head, is_trained_head
        from outrider.checkpoints.pretrained import assemble

        parent = Path(tempfile.mkdtemp(prefix="outrider-"))
        put_together = assemble_head if is_trained_head(folder) else assemble
        try:
            made = put_together(Path(options.target), folder, parent / folder.name)
            yield ("--model", str(made))
        except ValueError as error:
            raise InvalidField("DRAFT", str(error)) from error
        finally:
            shutil.rmtree(parent)
    elif folder.is_dir() and not (folder / "tokenizer.json").is_file():
        yield ("--model", options.draft, "--target-model", options.target)
    else:
        yield ("--model", options.draft)
