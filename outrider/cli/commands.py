"""Commands of the program ``outrider``."""

import asyncio
import os
import sys
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import grpc
import typer
from rich.text import Text

import outrider
from outrider.cli.audit_command import audit
from outrider.cli.demo import run_demo
from outrider.cli.flags import DEFAULT_ADDRESS, Address, Device, by_flag
from outrider.cli.generate_command import generate
from outrider.cli.pair_check_command import pair_check
from outrider.cli.policy_commands import policy_app
from outrider.cli.receipt import run_receipt
from outrider.cli.render import plain_console
from outrider.cli.report_command import report
from outrider.cli.stack import StackError
from outrider.cli.status import run_status
from outrider.cli.trace import FIXTURE, FixtureOptions, TraceOptions, run_fixture, run_trace
from outrider.cli.train_commands import train, write
from outrider.cli.up import UpOptions, run_up
from outrider.errors import InvalidField, OutriderError
from outrider.sampling import AcceptanceRule, SamplingParams

PASS_THROUGH = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}

app = typer.Typer(
    name="outrider",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def run() -> None:
    """Run a command; errors that a person can act on are printed without a traceback."""
    try:
        app()
    except grpc.aio.AioRpcError as error:
        _fail(f"{error.code().name}: {by_flag(error.details() or '')}{_advice(error)}")
    except UnicodeEncodeError:
        _fail("an argument holds bytes that are not UTF-8")
    except (OutriderError, StackError, TimeoutError) as error:
        _fail(by_flag(str(error)) or "timed out")
    except asyncio.CancelledError:  # a command's way to say that a signal ended it
        raise SystemExit(130) from None


def _print_version(asked: bool) -> None:
    if asked:
        typer.echo(outrider.__version__)
        raise typer.Exit


@app.callback()
def program(
    version: Annotated[
        bool,
        typer.Option(
            "--version", help="Print the version.", callback=_print_version, is_eager=True
        ),
    ] = False,
) -> None:
    """Serves a large language model over gRPC faster, without changing what it says."""


@app.command(context_settings=PASS_THROUGH)
def verifier(context: typer.Context) -> None:
    """Run a verifier: the target model. See [bold]outrider verifier --help[/bold]."""
    _become("verifier_svc", context.args)


@app.command(context_settings=PASS_THROUGH)
def drafter(context: typer.Context) -> None:
    """Run a drafter: proposes tokens. See [bold]outrider drafter --help[/bold]."""
    _become("drafter_svc", context.args)


@app.command(context_settings=PASS_THROUGH)
def orchestrator(context: typer.Context) -> None:
    """Run an orchestrator: what clients call. See [bold]outrider orchestrator --help[/bold]."""
    _become("orchestrator", context.args)


@app.command(context_settings=PASS_THROUGH)
def openai(context: typer.Context) -> None:
    """Answer OpenAI's clients over HTTP. See [bold]outrider openai --help[/bold]."""
    _become("openai_svc", context.args)


@app.command()
def up(
    target: Annotated[
        str, typer.Option(help="Folder or hub id of the target; empty: the demo target.")
    ] = "",
    draft: Annotated[
        str,
        typer.Option(help="Folder or hub id of a draft model; empty: the demo's."),
    ] = "",
    lookup_only: Annotated[
        bool, typer.Option("--lookup-only", help="Start a drafter without a model.")
    ] = False,
    port: Annotated[int, typer.Option(help="Port of the orchestrator.", min=0, max=65535)] = 50051,
    dtype: Annotated[
        Literal["bfloat16", "float32"], typer.Option(help="Element type of both models.")
    ] = "bfloat16",
    device: Device = "cpu",
    openai_port: Annotated[
        int | None,
        typer.Option(
            help="Port for OpenAI's clients, 0: a free one; without it there is none.",
            min=0,
            max=65535,
        ),
    ] = None,
) -> None:
    """Start verifier, drafter and orchestrator on this machine; Ctrl-C stops them."""
    run_up(UpOptions(target, draft, lookup_only, port, dtype, device, openai_port))


@app.command()
def trace(
    prompt: Annotated[
        str, typer.Argument(help='What to continue, or "fixture" for the built-in table.')
    ],
    address: Address = DEFAULT_ADDRESS,
    chat: Annotated[
        bool, typer.Option("--chat", help="Send the prompt as a user message.")
    ] = False,
    rule: Annotated[
        AcceptanceRule, typer.Option(help="What decides about draft tokens.")
    ] = AcceptanceRule.REJECTION,
    drafter: Annotated[
        str, typer.Option(help='Draft source, such as "model" or "ngram"; empty: the policy\'s.')
    ] = "",
    k: Annotated[int, typer.Option("--k", help="Tokens per draft; 0: the policy's.", min=0)] = 0,
    max_tokens: Annotated[int, typer.Option(help="Longest output.")] = 16,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.8,
    top_p: Annotated[float, typer.Option(help="Nucleus mass; 1 is off.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Most likely ids kept; 0 is off.")] = 0,
    seed: Annotated[int | None, typer.Option(help="Makes an output repeatable.")] = None,
    top_ids: Annotated[
        int, typer.Option(help="Most likely ids to show per position.", min=1, max=64)
    ] = 5,
    runs: Annotated[
        int,
        typer.Option(
            help="With fixture: compare this many runs with target-only ones.", min=0, max=1_000_000
        ),
    ] = 0,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    timeout_s: Annotated[float, typer.Option(help="Deadline of the request.", min=0.001)] = 300.0,
) -> None:
    """Show how cycles were decided, number by number, on a table or on running services."""
    if prompt == FIXTURE:
        if not asyncio.run(run_fixture(FixtureOptions(rule, seed, runs, json))):
            raise typer.Exit(1)
        return
    if runs:
        raise InvalidField("--runs", 'needs "fixture" in place of a prompt')
    sampling = SamplingParams(
        temperature=temperature, top_p=top_p, top_k=top_k, seed=seed, max_tokens=max_tokens
    )
    options = TraceOptions(
        prompt, address, chat, drafter, k, rule, sampling, top_ids, json, timeout_s
    )
    asyncio.run(run_trace(options))


@app.command()
def status(
    address: Address = DEFAULT_ADDRESS,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show the workers, their identities, and why a drafter was refused."""
    asyncio.run(run_status(address, as_json=json))


@app.command()
def demo(
    max_tokens: Annotated[int, typer.Option(help="Tokens per answer.")] = 96,
    num_prompts: Annotated[int, typer.Option(help="Prompts to run.", min=1, max=8)] = 3,
    models: Annotated[Path, typer.Option(help="Folder of the demo models.")] = Path("build/models"),
) -> None:
    """Start everything on real models, answer prompts with and without drafts, compare, stop."""
    run_demo(models, max_tokens=max_tokens, num_prompts=num_prompts)


@app.command()
def receipt(
    request_id: Annotated[str, typer.Argument(help="The request's id (x-request-id).")],
    address: Address = DEFAULT_ADDRESS,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what became of a request that has ended, and why it speculated as it did."""
    asyncio.run(run_receipt(address, request_id, as_json=json))


app.add_typer(policy_app, name="policy")
app.command()(audit)
app.command()(generate)
app.command()(pair_check)
app.command()(report)
app.command()(write)
app.command()(train)


@app.command()
def version() -> None:
    """Print the version."""
    typer.echo(outrider.__version__)


def _become(module: str, arguments: list[str]) -> NoReturn:
    """Replace this process by the service, so that signals and exit codes are its own."""
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])


def _fail(message: str) -> NoReturn:
    text = Text.assemble(("error:", "bold red"), f" {message}")
    plain_console(stderr=True).print(text, soft_wrap=True)
    raise SystemExit(1)


def _advice(error: grpc.aio.AioRpcError) -> str:
    if "failed to connect" in (error.details() or ""):
        return "\nIs the orchestrator running? `outrider up` starts one, `outrider status` asks it."
    return ""
