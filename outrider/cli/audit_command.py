"""The command ``outrider audit``: its flags."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import grpc
import typer
from rich.text import Text

from outrider.audit.plan import FULL, QUICK, VIEWS, Plan, Sizes, Tolerances
from outrider.audit.view import Verdict
from outrider.cli.audit import AuditOptions, run_audit
from outrider.cli.flags import Device, by_flag, check_address
from outrider.cli.render import plain_console
from outrider.cli.stack import StackError
from outrider.errors import OutriderError

EXIT_CODES = {Verdict.PASS: 0, Verdict.FAIL: 1, Verdict.NOT_RUN: 2}


def _check_address(value: str) -> str:
    return check_address(value) if value else value


def _check_views(values: list[str] | None) -> list[str]:
    unknown = sorted(set(values or ()) - set(VIEWS))
    if unknown:
        raise typer.BadParameter(f"{', '.join(unknown)}: the views are {', '.join(VIEWS)}")
    return list(values or ())


def audit(
    address: Annotated[
        str,
        typer.Option(
            help="host:port of a running orchestrator; empty: services are started for the audit.",
            callback=_check_address,
        ),
    ] = "",
    target: Annotated[
        str,
        typer.Option(
            help="Folder or hub id of the target, to start it and to read outputs apart from the"
            " services; empty: the demo's, or with --address none."
        ),
    ] = "",
    draft: Annotated[
        str, typer.Option(help="Folder or hub id of a draft model to start; empty: copies alone.")
    ] = "",
    model: Annotated[str, typer.Option(help="Name of the target; empty: the only one.")] = "",
    drafter: Annotated[
        list[str] | None,
        typer.Option(help="Draft source to force; may repeat. Empty: the drafter's own first one."),
    ] = None,
    k: Annotated[int, typer.Option("--k", help="Tokens per forced draft.", min=1, max=64)] = 4,
    prompts: Annotated[
        Path | None,
        typer.Option(
            help="JSONL of prompts: prompt, user or the first of turns; category and answer where"
            " known. Empty: what OUTRIDER_QUESTIONS names, or a few built-in ones.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    raw: Annotated[
        bool, typer.Option("--raw", help="Continue prompts as they are, without a chat template.")
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer and shorter requests: some minutes on two cores.")
    ] = False,
    num_prompts: Annotated[int, typer.Option(help="Prompts; 0: 24, quick 12.", min=0)] = 0,
    max_tokens: Annotated[int, typer.Option(help="Longest output; 0: 96, quick 48.", min=0)] = 0,
    samples: Annotated[
        int, typer.Option(help="Outputs of every prompt for each rule; 0: 6, quick 4.", min=0)
    ] = 0,
    temperature: Annotated[
        float, typer.Option(help="Of sampled outputs.", min=0.01, max=100)
    ] = 1.0,
    top_p: Annotated[float, typer.Option(help="Nucleus mass; 1 is off.", min=0.001, max=1)] = 1.0,
    top_k: Annotated[int, typer.Option(help="Most likely ids kept; 0 is off.", min=0)] = 0,
    streams: Annotated[
        int, typer.Option(help="Requests at a time, but for latency.", min=1, max=1024)
    ] = 4,
    seed: Annotated[int, typer.Option(help="First seed.", min=0, max=2**62)] = 0,
    max_slowdown: Annotated[
        float, typer.Option(help="Share by which a token may take longer under the policy.", min=0)
    ] = Tolerances().max_slowdown,
    skip: Annotated[
        list[str] | None,
        typer.Option(
            help=f"View to leave out; may repeat: {', '.join(VIEWS)}.", callback=_check_views
        ),
    ] = None,
    dtype: Annotated[
        Literal["bfloat16", "float32"], typer.Option(help="Element type of models to start.")
    ] = "bfloat16",
    reference_dtype: Annotated[
        Literal["bfloat16", "float32"],
        typer.Option(help="Element type in which outputs are read apart."),
    ] = "float32",
    device: Device = "cpu",
    out: Annotated[Path, typer.Option(help="Folder of the report.", file_okay=False)] = Path(
        "build/audit"
    ),
    timeout_s: Annotated[float, typer.Option(help="Deadline of a request.", min=0.001)] = 300.0,
) -> None:
    """Show on your own prompts that a pair says what its target alone would, or where it does not.

    Exit status: 0 every view passed, 1 one failed, 2 one could not be made.
    """
    plan = Plan(
        sizes=_sizes(QUICK if quick else FULL, num_prompts, max_tokens, samples),
        tolerances=Tolerances(max_slowdown=max_slowdown),
        sources=(),
        num_draft_tokens=k,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        num_streams=streams,
        seed=seed,
        skipped=frozenset(skip or ()),
        timeout_s=timeout_s,
    )
    if address and draft:
        raise typer.BadParameter("--draft starts a drafter, which --address does without")
    options = AuditOptions(
        plan=plan,
        address=address,
        target=target,
        draft=draft,
        model=model,
        drafters=tuple(drafter or ()),
        prompts=prompts,
        raw=raw,
        dtype=dtype,
        reference_dtype=reference_dtype,
        device=device,
        out=out,
    )
    raise typer.Exit(EXIT_CODES[_verdict(options)])


def _verdict(options: AuditOptions) -> Verdict:
    """Run the audit; what keeps it from running is told, and is no failure of the pair."""
    try:
        return run_audit(options)
    except grpc.aio.AioRpcError as error:
        reason = f"{error.code().name}: {by_flag(error.details() or '')}"
    except (OutriderError, StackError, TimeoutError, OSError) as error:
        reason = by_flag(str(error)) or "timed out"
    text = Text.assemble(("could not run:", "bold yellow"), f" {reason}")
    plain_console(stderr=True).print(text, soft_wrap=True)
    return Verdict.NOT_RUN


def _sizes(sizes: Sizes, num_prompts: int, max_tokens: int, samples: int) -> Sizes:
    return replace(
        sizes,
        num_prompts=num_prompts or sizes.num_prompts,
        max_tokens=max_tokens or sizes.max_tokens,
        num_samples=samples or sizes.num_samples,
    )
