"""The commands ``outrider write`` and ``train``: their flags."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from outrider.cli.flags import check_device
from outrider.cli.train import (
    DEFAULT_LAYERS,
    Kind,
    TrainOptions,
    WriteOptions,
    run_train,
    run_write,
)


def write(
    target: Annotated[
        Path, typer.Option(help="Folder of the target.", exists=True, file_okay=False)
    ],
    out: Annotated[
        Path,
        typer.Option(help="JSONL to write; examples are added to what is there.", dir_okay=False),
    ],
    num_examples: Annotated[
        int, typer.Option(help="Examples that the file will have.", min=1)
    ] = 8000,
    prompts: Annotated[
        Path | None,
        typer.Option(
            help="JSONL of messages (user, or the first of turns) to answer in turn; without it the"
            " target writes them itself.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    max_answer_tokens: Annotated[int, typer.Option(help="Longest answer.", min=1)] = 224,
    num_together: Annotated[int, typer.Option(help="Examples at a time.", min=1, max=1024)] = 32,
    seed: Annotated[int, typer.Option(help="Decides every example.", min=0, max=65535)] = 0,
    dtype: Annotated[
        Literal["bfloat16", "float32"], typer.Option(help="Element type of the target.")
    ] = "bfloat16",
    device: Annotated[
        str, typer.Option(help="cpu, cuda or cuda:N.", callback=check_device)
    ] = "cpu",
) -> None:
    """Let a target write what its drafters are trained on; the same command goes on."""
    run_write(
        WriteOptions(
            target, out, num_examples, prompts, max_answer_tokens, num_together, seed, dtype, device
        )
    )


def train(
    kind: Annotated[Kind, typer.Argument(help="What to train.")],
    target: Annotated[
        Path, typer.Option(help="Folder of the target.", exists=True, file_okay=False)
    ],
    corpus: Annotated[
        list[Path],
        typer.Option(
            help="JSONL of answers that the target wrote, plain or .xz; may repeat.",
            exists=True,
            dir_okay=False,
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder of the run; one that is found there goes on.")],
    layers: Annotated[
        str,
        typer.Option(
            help=f"Layers of the target that a draft model keeps; default: {DEFAULT_LAYERS}."
        ),
    ] = "",
    num_frozen: Annotated[
        int, typer.Option(help="First layers that stay as the target has them.", min=0)
    ] = 0,
    num_parallel: Annotated[
        int,
        typer.Option(help="Tokens that one pass proposes; parallel only, 0: six.", min=0, max=32),
    ] = 0,
    draft_vocab_size: Annotated[
        int, typer.Option(help="Ids that can be proposed, the most frequent; 0: all.", min=0)
    ] = 8192,
    num_tokens: Annotated[
        int, typer.Option(help="Tokens to read, prompts and repetitions included.", min=1)
    ] = 4_000_000,
    tokens_per_batch: Annotated[int, typer.Option(help="Tokens of one step.", min=16)] = 2048,
    learning_rate: Annotated[
        float,
        typer.Option(
            help="Peak of the learning rate; 0: 8e-4 for draft models, 2.5e-3 for heads.",
            min=0.0,
        ),
    ] = 0.0,
    max_length: Annotated[int, typer.Option(help="Longer examples are left out.", min=2)] = 512,
    exclude: Annotated[
        list[Path] | None,
        typer.Option(
            help="JSONL of questions that are never trained on; may repeat.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    start_from: Annotated[
        Path | None,
        typer.Option(
            help="Folder of a trained drafter to begin with.", exists=True, file_okay=False
        ),
    ] = None,
    seed: Annotated[int, typer.Option(help="Decides the order of the examples.", min=0)] = 0,
    num_threads: Annotated[int, typer.Option(help="Threads; 0 takes every core.", min=0)] = 0,
    tap_layers: Annotated[
        str,
        typer.Option(
            help="eagle3 only: which hidden states are read, by the layer that they enter; the last"
            " is the number of layers. Default: three tenths, seven tenths, all."
        ),
    ] = "",
    num_steps: Annotated[
        int,
        typer.Option(
            help="eagle3 and redrafter: tokens that are drafted in training; 0: four, five.",
            min=0,
            max=16,
        ),
    ] = 0,
    num_heads: Annotated[
        int, typer.Option(help="medusa only: heads, a token each; 0: four.", min=0, max=16)
    ] = 0,
    num_head_layers: Annotated[
        int,
        typer.Option(
            help="medusa and redrafter: residual layers; 0: one a head, two.", min=0, max=8
        ),
    ] = 0,
    features: Annotated[
        Path | None,
        typer.Option(
            help="Heads only: where hidden states of the target are kept, which several runs can"
            " share; default: in the folder of the run.",
            file_okay=False,
        ),
    ] = None,
    device: Annotated[
        str, typer.Option(help="cpu, cuda or cuda:N.", callback=check_device)
    ] = "cpu",
) -> None:
    """Train a drafter on what its target wrote; the same command goes on after an interruption."""
    run_train(
        TrainOptions(
            kind=kind,
            target=target,
            corpus=tuple(corpus),
            out=out,
            layers=layers,
            num_frozen=num_frozen,
            num_parallel=num_parallel,
            draft_vocab_size=draft_vocab_size,
            num_tokens=num_tokens,
            tokens_per_batch=tokens_per_batch,
            learning_rate=learning_rate,
            max_length=max_length,
            exclude=tuple(exclude or ()),
            start_from=start_from,
            seed=seed,
            num_threads=num_threads,
            tap_layers=tap_layers,
            num_steps=num_steps,
            num_heads=num_heads,
            num_head_layers=num_head_layers,
            features=features,
            device=device,
        )
    )
