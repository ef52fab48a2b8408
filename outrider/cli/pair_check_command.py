"""The flags of ``outrider pair-check``."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from outrider.cli.flags import Device
from outrider.cli.pair_check import (
    DEFAULT_LENGTHS,
    DEFAULT_STREAMS,
    DEFAULT_TEMPERATURES,
    LOOKUPS,
    MAX_STREAMS,
    PairCheckOptions,
    run_pair_check,
)


def pair_check(
    target: Annotated[str, typer.Argument(help="Folder or hub id of the target.")],
    draft: Annotated[
        str,
        typer.Argument(
            help="Folder or hub id of a draft model or head, or a lookup source: "
            f"{', '.join(LOOKUPS)}."
        ),
    ],
    prompts: Annotated[
        Path | None,
        typer.Option(
            help="JSONL of messages (prompt, user, or the first of turns); a dozen of our own"
            " without it.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    json: Annotated[
        Path | None, typer.Option(help="File to write what was found to.", dir_okay=False)
    ] = None,
    source: Annotated[
        list[str] | None,
        typer.Option(help="Draft source to measure; may repeat. Default: those of the draft."),
    ] = None,
    k: Annotated[
        list[int] | None,
        typer.Option("--k", help="Tokens per draft; may repeat. Default: 1 3 7.", min=1, max=64),
    ] = None,
    streams: Annotated[
        list[int] | None,
        typer.Option(help="Requests at once; may repeat. Default: 1 4 16.", min=1, max=MAX_STREAMS),
    ] = None,
    temperature: Annotated[
        list[float] | None,
        typer.Option(help="May repeat. Default: 0 and 0.8 (coupled).", min=0.0, max=100.0),
    ] = None,
    num_prompts: Annotated[int, typer.Option(help="Prompts of the file.", min=1)] = 8,
    max_tokens: Annotated[int, typer.Option(help="Longest answer.", min=8)] = 48,
    rounds: Annotated[
        int, typer.Option(help="Times that advice is tried beside target-only.", min=1)
    ] = 3,
    dtype: Annotated[
        Literal["bfloat16", "float32"], typer.Option(help="Element type of both models.")
    ] = "bfloat16",
    device: Device = "cpu",
) -> None:
    """Measure whether a drafter pays for a target on this machine, and at which load.

    Exit status 0: it pays somewhere; 3: nowhere; 1: the two do not fit, or something failed.
    """
    options = PairCheckOptions(
        target=target,
        draft=draft,
        prompts=prompts,
        json=json,
        sources=tuple(source or ()),
        lengths=tuple(sorted(set(k or DEFAULT_LENGTHS))),
        streams=tuple(sorted(set(streams or DEFAULT_STREAMS))),
        temperatures=tuple(sorted(set(temperature or DEFAULT_TEMPERATURES))),
        num_prompts=num_prompts,
        max_tokens=max_tokens,
        num_rounds=rounds,
        dtype=dtype,
        device=device,
    )
    raise typer.Exit(run_pair_check(options))
