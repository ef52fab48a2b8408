"""The commands ``outrider policy check`` and ``explain``: their flags."""

from pathlib import Path
from typing import Annotated

import typer

from outrider.cli.policy import ExplainOptions, run_check, run_explain

policy_app = typer.Typer(
    no_args_is_help=True, help="Check a policy file, or explain what it decides. Needs no service."
)


@policy_app.command()
def check(file: Annotated[Path, typer.Argument(help="Policy file (YAML).")]) -> None:
    """Validate a policy file; names every fault with its line."""
    run_check(file)


@policy_app.command()
def explain(
    request: Annotated[
        Path,
        typer.Argument(
            help='JSON of a GenerateRequest, with "metadata" beside its fields where rules read it.'
        ),
    ],
    policy: Annotated[
        Path | None,
        typer.Option(help="Policy file; without one the built-in policy, at its defaults."),
    ] = None,
    prompt_tokens: Annotated[
        int | None,
        typer.Option(help="Tokens of the prompt, where rules ask and it is not tokenized.", min=1),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Print what is decided about a request, and why, rule by rule."""
    run_explain(ExplainOptions(request, policy, prompt_tokens, json))
