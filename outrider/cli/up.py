"""``outrider up``: the whole system on this machine."""

import asyncio
import signal
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from outrider.cli.stack import Stack, StackOptions, run_stack

DEMO_MODELS = Path("build/models")
LOOKUP = "ngram"


@dataclass(frozen=True, slots=True)
class UpOptions:
    """What the flags say; empty models mean the demo models."""

    target: str
    draft: str
    lookup_only: bool
    port: int
    dtype: str
    device: str


async def run_up(options: UpOptions) -> None:
    """Start the services, tell where they listen, and stop them at a signal.

    Raises: StackError if one of them ends by itself; the others are stopped.
    """
    console = Console(highlight=False)
    stopping = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    stack_options = await asyncio.to_thread(_stack_options, options, console)
    console.print("loading models")
    async with run_stack(stack_options) as stack:
        _announce(console, stack)
        signalled = asyncio.create_task(stopping.wait())
        ended = asyncio.create_task(stack.wait_until_one_ends())
        try:
            await asyncio.wait((signalled, ended), return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                ended.result()
        finally:
            signalled.cancel()
            ended.cancel()
            console.print("stopping")


def _announce(console: Console, stack: Stack) -> None:
    for service in stack.services:
        console.print(f"{service.name:14} {service.address:22} log {service.log_path}")
    address = stack.orchestrator.address
    console.print(f'\noutrider generate --address {address} --chat "Why is the sky blue?"')
    console.print(f"outrider status --address {address}\n\nCtrl-C stops all services.")


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
            # The demo's draft model is untrained: there to be asked for, not to be the default.
            draft, preferred = str(prepared.draft), ("--sources", LOOKUP)
    numerics = ("--dtype", options.dtype, "--device", options.device)
    use_draft = draft and not options.lookup_only
    model_flags = ("--model", draft, *numerics) if use_draft else ()
    return StackOptions(
        verifier_flags=[("--model", target, *numerics)],
        drafter_flags=[model_flags],
        orchestrator_flags=("--port", str(options.port), *preferred),
    )
