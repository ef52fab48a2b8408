"""The flags of ``outrider report``."""

from pathlib import Path
from typing import Annotated

import typer

from outrider.cli.report import run_report
from outrider.packet.inputs import Inputs


def report(
    receipts: Annotated[
        list[Path],
        typer.Option(help="Receipt log (JSONL); may repeat.", exists=True, dir_okay=False),
    ],
    out: Annotated[Path, typer.Option(help="Folder of the packet.", file_okay=False)],
    baseline: Annotated[
        list[Path] | None,
        typer.Option(
            help="Receipt log of a run in which all were target-only; may repeat.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    audit: Annotated[
        list[Path] | None,
        typer.Option(
            help="What outrider audit wrote (audit.json); may repeat.", exists=True, dir_okay=False
        ),
    ] = None,
    law: Annotated[
        list[Path] | None,
        typer.Option(
            help="Results of law tests (pytest --junitxml); may repeat.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    load: Annotated[
        Path | None,
        typer.Option(help="What the load generator checked (JSON).", exists=True, dir_okay=False),
    ] = None,
    fixture: Annotated[bool, typer.Option(help="Run the built-in table; needs torch.")] = True,
) -> None:
    """Write the release packet: correctness, eligibility and operational value on one page.

    Exit status 1 if one of the three failed.
    """
    inputs = Inputs(
        receipts=tuple(receipts),
        baseline=tuple(baseline or ()),
        audits=tuple(audit or ()),
        law=tuple(law or ()),
        load=load,
        fixture=fixture,
    )
    raise typer.Exit(run_report(inputs, out))
