"""``outrider up``: the whole system on this machine."""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from outrider import sources
from outrider.cli.interrupts import cancelled_by_signals
from outrider.cli.render import plain_console
from outrider.cli.stack import Stack, StackError, StackOptions, run_stack

DEMO_MODELS = Path("build/models")
# On the few cores of one machine copies gain time; a model drafts more and costs what it gains.
DEFAULT_SOURCE = sources.LOOKUP
# The answer repeats most of the prompt, so that lookup has something to find.
EXAMPLE = "Rewrite in the past tense: The engineers check every bridge before the river rises."


@dataclass(frozen=True, slots=True)
class UpOptions:
    """What the flags say; empty models mean the demo models."""

    target: str
    draft: str
    lookup_only: bool
    port: int
    dtype: str
    device: str
    openai_port: int | None = None
    """Port of the OpenAI front door; None starts none."""


def run_up(options: UpOptions) -> None:
    """Start the services, tell where they listen, and stop them at a signal.

    Raises: StackError if one of them ends by itself, the others are stopped; CancelledError if a
        signal comes before all are ready, or a second one before all have stopped.
    """
    console = plain_console()
    stack_options = _stack_options(options, console)  # before the loop: Ctrl-C ends it where it is
    asyncio.run(_run(console, stack_options))


async def _run(console: Console, options: StackOptions) -> None:
    with cancelled_by_signals(console):
        console.print("loading models")
        async with run_stack(options) as stack:
            _announce(console, stack)
            try:
                await stack.wait_until_one_ends()
            except asyncio.CancelledError:
                pass  # the ordinary end: leaving the block stops the services
            except StackError:
                console.print("stopping")
                raise


def _announce(console: Console, stack: Stack) -> None:
    for service in stack.services:
        line = f"{service.name:14} {service.address:22} log {service.log_path}"
        console.print(line, soft_wrap=True)
    address = stack.orchestrator.address
    console.print(f'\noutrider generate --address {address} --chat "{EXAMPLE}"', soft_wrap=True)
    console.print(f"outrider status --address {address}")
    if stack.front_door is not None:
        console.print(f"OpenAI's clients: base_url http://{stack.front_door.address}/v1")
    console.print("\nCtrl-C stops all services.")


def _stack_options(options: UpOptions, console: Console) -> StackOptions:
    target, draft = options.target, options.draft
    preferred: tuple[str, ...] = ()
    if not target:
        # Imported late: only this way needs torch in the process of the command line.
        from outrider.checkpoints import prepare

        console.print(f"demo models in {DEMO_MODELS} (made once, about half a minute)")
        prepared = prepare(DEMO_MODELS)
        target = str(prepared.target)
        if not draft:
            draft, preferred = str(prepared.best), ("--sources", DEFAULT_SOURCE)
    door = None if options.openai_port is None else ("--port", str(options.openai_port))
    numerics = ("--dtype", options.dtype, "--device", options.device)
    use_draft = draft and not options.lookup_only
    model_flags = ("--model", draft, *numerics) if use_draft else ()
    return StackOptions(
        verifier_flags=[("--model", target, *numerics)],
        drafter_flags=[model_flags],
        orchestrator_flags=("--port", str(options.port), *preferred),
        openai_flags=door,
    )
