"""``outrider audit``: what the flags mean, and an audit from its services to its report."""

import asyncio
import datetime
import os
import platform
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from google.protobuf.json_format import MessageToDict
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

import outrider
from outrider import questions
from outrider.audit import programs, sums
from outrider.audit.asking import Asker, Prompt
from outrider.audit.audit import Audit, Task
from outrider.audit.plan import Plan
from outrider.audit.reference import Law, PromptReference, Reference, TransformersReference
from outrider.audit.report import CHART, FIGURES, PAGE, Audited, write_report
from outrider.audit.sandbox import has_no_network
from outrider.audit.view import Verdict
from outrider.cli.interrupts import cancelled_by_signals
from outrider.cli.invocation import invocation
from outrider.cli.pairing import wait_paired
from outrider.cli.render import plain_console
from outrider.cli.stack import StackOptions, run_stack
from outrider.cli.up import DEMO_MODELS
from outrider.client import Client
from outrider.errors import InvalidField, OutriderError
from outrider.questions import Question
from outrider.v1 import common_pb2
from outrider.v1 import generation_pb2 as pb

COLOURS = {Verdict.PASS: "green", Verdict.FAIL: "bold red", Verdict.NOT_RUN: "yellow"}
CANARY_S = 120.0
ORCHESTRATOR_FLAGS = ("--min-step-timeout-s=60",)  # a busy machine is no fault of the pair


@dataclass(frozen=True, slots=True)
class AuditOptions:
    """What the flags say.

    ``plan`` lacks its sources where ``drafters`` is empty: the drafter's own first one is taken.
    """

    plan: Plan
    address: str
    target: str
    draft: str
    model: str
    drafters: tuple[str, ...]
    prompts: Path | None
    raw: bool
    dtype: str
    reference_dtype: str
    device: str
    out: Path


def run_audit(options: AuditOptions) -> Verdict:
    """Audit, write the report and show what it says.

    Raises: OutriderError, StackError, TimeoutError or grpc.aio.AioRpcError if it could not be run.
    """
    console = plain_console()
    options = with_models(options, console)  # before the loop: Ctrl-C ends it where it is
    audited = asyncio.run(_run(options, console))
    write_report(audited, options.out)
    for view in audited.views:
        console.print(f"{view.verdict.value:8} ", style=COLOURS[view.verdict], end="")
        console.print(f"{view.name:12} {view.finding}", soft_wrap=True)
    written = ", ".join(str(options.out / name) for name in (PAGE, FIGURES, CHART))
    console.print(f"\n{audited.verdict.value}; {written}", soft_wrap=True)
    return audited.verdict


def with_models(options: AuditOptions, console: Console) -> AuditOptions:
    """Return the options with the demo's models where no model and no address is named."""
    if options.address or options.target:
        return options
    # Imported late: only this way needs torch here.
    from outrider.checkpoints import prepare

    console.print(f"demo models in {DEMO_MODELS} (made once, about half a minute)")
    prepared = prepare(DEMO_MODELS)
    draft = options.draft or str(prepared.best)
    return replace(options, target=str(prepared.target), draft=draft)


async def _run(options: AuditOptions, console: Console) -> Audited:
    async with AsyncExitStack() as exits:
        exits.enter_context(cancelled_by_signals(console))
        address = await exits.enter_async_context(_services(options, console))
        client = await exits.enter_async_context(Client(address))
        workers = await _workers(client, options)
        info = await client.stub.GetModelInfo(pb.GetModelInfoRequest(model=options.model))
        plan = with_sources(options.plan, options.drafters, workers)
        reference = _reference(options, client, info.identity.vocab_size)
        asked = _questions(options)
        prompts = await _prompts(client, options, questions.spread(asked, plan.sizes.num_prompts))
        tasks, notes = await _tasks(client, options, plan, asked)
        progress = exits.enter_context(_bar(console))
        told = Told(progress)
        salt = f"audit-{datetime.datetime.now(datetime.UTC):%Y%m%dT%H%M%S}"
        audit = Audit(
            asker=Asker(client, options.model, salt, plan.timeout_s, told.one),
            plan=plan,
            prompts=prompts,
            reference=reference,
            row_invariant=info.identity.numerics.row_invariant,
            tasks=tasks,
            told=told.begin,
        )
        views = await audit.run()
    facts = _facts(options, plan, info.identity, workers, reference, asked) | notes
    identities = {
        worker.address: MessageToDict(worker.identity, preserving_proto_field_name=True)
        for worker in workers
    }
    return Audited(facts, plan, views, identities)


@asynccontextmanager
async def _services(options: AuditOptions, console: Console) -> AsyncIterator[str]:
    """Yield the address of an orchestrator: the named one, or one that is started for the audit."""
    if options.address:
        yield options.address
        return
    numerics = ("--dtype", options.dtype, "--device", options.device)
    draft = ("--model", options.draft, *numerics) if options.draft else ()
    stack_options = StackOptions(
        verifier_flags=[("--model", options.target, *numerics)],
        drafter_flags=[draft],
        orchestrator_flags=ORCHESTRATOR_FLAGS,
    )
    console.print("loading models")
    async with run_stack(stack_options) as stack:
        yield stack.orchestrator.address


async def _workers(client: Client, options: AuditOptions) -> list[pb.WorkerInfo]:
    """Return the workers; those that were just started are waited for."""
    if not options.address:
        return await wait_paired(client, timeout_s=CANARY_S)
    return list((await client.stub.GetServerInfo(pb.GetServerInfoRequest(), timeout=10)).workers)


def with_sources(plan: Plan, named: Sequence[str], workers: Sequence[pb.WorkerInfo]) -> Plan:
    """Return the plan with the draft sources to force: those named, else the first that is offered.

    Raises: OutriderError if no drafter is ready.
    """
    offered = [
        source
        for worker in workers
        if worker.role == "drafter" and worker.state == "ready"
        for source in worker.sources
    ]
    if not offered:
        told = "; ".join(w.reason for w in workers if w.role == "drafter" and w.reason)
        raise OutriderError(f"no drafter is ready{': ' if told else ''}{told}")
    return replace(plan, sources=tuple(named) or (offered[0],))


def _questions(options: AuditOptions) -> list[Question]:
    """Return what the user's file asks, or the usual questions.

    Raises: OutriderError if there are none; InvalidField naming file and line.
    """
    try:
        path = options.prompts or questions.known_file()
        found = list(questions.OWN) if path is None else questions.read_questions(path)
    except OSError as error:
        raise OutriderError(str(error)) from error
    longest = options.plan.sizes.max_characters
    short = [each for each in found if longest is None or len(each.text) <= longest]
    if not short:
        limit = "" if longest is None else f" of at most {longest} characters, as --quick takes"
        raise InvalidField("--prompts", f"{path} holds no prompts{limit}")
    return short


async def _prompts(
    client: Client, options: AuditOptions, asked: Sequence[Question]
) -> list[Prompt]:
    return [
        Prompt(number, question.category, await _ids(client, options, question.text))
        for number, question in enumerate(asked)
    ]


async def _ids(client: Client, options: AuditOptions, text: str) -> tuple[int, ...]:
    prompt = text if options.raw else [("user", text)]
    return tuple(await client.tokenize(prompt, options.model))


async def _tasks(
    client: Client, options: AuditOptions, plan: Plan, asked: Sequence[Question]
) -> tuple[dict[str, Sequence[Task]], dict[str, str]]:
    """Return the tasks of each view that has some, and what is to be said of them."""
    tasks: dict[str, Sequence[Task]] = {}
    notes: dict[str, str] = {}
    if plan.wants("humaneval"):
        found = programs.load_programs(plan.sizes.num_programs)
        tasks["humaneval"] = [
            Task(
                Prompt(number, "humaneval", tuple(await client.tokenize(each.text, options.model))),
                programs.STOPS,
                each.is_solved_by,
            )
            for number, each in enumerate(found)
        ]
        network = "without a network" if has_no_network() else "the network could not be taken away"
        notes["programs"] = f"HumanEval, {len(found)} of 164 tasks, run in a sandbox, {network}"
    if plan.wants("arithmetic"):
        problems = sums.load_sums(asked, plan.sizes.num_sums)
        tasks["arithmetic"] = [
            Task(
                Prompt(number, each.category, await _ids(client, options, each.text)),
                (),
                partial(sums.is_right, each) if each.answer else None,
            )
            for number, each in enumerate(problems)
        ]
        known = sum(bool(each.answer) for each in problems)
        notes["sums"] = f"{len(problems)} arithmetic problems, the right answer of {known} is known"
    return tasks, notes


def _reference(options: AuditOptions, client: Client, vocab_size: int) -> Reference:
    """Return what reads the outputs apart.

    Raises: OutriderError if the weights cannot be loaded; InvalidField if a law cannot be read.
    """
    plan = options.plan
    if options.target:
        # Imported late: only this way needs torch here.
        from outrider.hosting import local_folder

        return TransformersReference.load(
            local_folder(options.target),
            vocab_size=vocab_size,
            dtype=options.reference_dtype,
            device=options.device,
        )
    law = Law(plan.temperature, plan.top_p, plan.top_k)
    objection = PromptReference.objection(law)
    if objection and plan.wants("token-law"):
        raise InvalidField("--temperature", objection)
    return PromptReference(client, options.model, plan.timeout_s)


def _facts(
    options: AuditOptions,
    plan: Plan,
    target: common_pb2.ModelIdentity,
    workers: Sequence[pb.WorkerInfo],
    reference: Reference,
    asked: Sequence[Question],
) -> dict[str, str]:
    sizes = plan.sizes
    drafters = ", ".join(
        sorted({w.identity.name or "lookup" for w in workers if w.role == "drafter"})
    )
    numerics = target.numerics
    kind = "row-invariant" if numerics.row_invariant else "not row-invariant"
    where = options.prompts or questions.known_file()
    most = sizes.max_characters
    longest = "" if most is None else f" with at most {most} characters"
    return {
        "made": f"{datetime.date.today()} by `{invocation()}`, outrider {outrider.__version__}",
        "target": (
            f"{target.name}, {numerics.dtype} on {numerics.device}, {numerics.kernels}, {kind}"
        ),
        "drafter": (
            f"{drafters}; forced: {', '.join(plan.sources)}, {plan.num_draft_tokens} tokens a draft"
        ),
        "prompts": (
            f"{sizes.num_prompts} of {len(asked)}{longest} ({where.name if where else 'built in'})"
        ),
        "outputs": (
            f"at most {sizes.max_tokens} tokens; sampled ones at temperature {plan.temperature:g}, "
            f"top-p {plan.top_p:g}, top-k {plan.top_k}, seeds from {plan.seed}, "
            f"{sizes.num_samples} of every prompt for each rule"
        ),
        "reference": reference.description,
        "machine": f"{platform.machine()}, {len(os.sched_getaffinity(0))} cores",
    }


def _bar(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        console=console,
        disable=not console.is_terminal,
    )


@dataclass(slots=True)
class Told:
    """Shows how far an audit has come: on bars, or line by line where none can be drawn."""

    bar: Progress
    _task: TaskID | None = None

    def begin(self, what: str, num_steps: int) -> None:
        """Begin something of so many steps."""
        self._task = self.bar.add_task(what, total=num_steps)
        if self.bar.disable:
            self.bar.console.print(f"{what}: {num_steps}")

    def one(self) -> None:
        """Count a step."""
        if self._task is not None:
            self.bar.advance(self._task)
