"""``outrider train``: make a drafter for a target out of what the target writes."""

import shlex
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from outrider.cli.render import plain_console
from outrider.errors import InvalidField

if TYPE_CHECKING:
    from outrider.training.trainer import Progress as Trained

app = typer.Typer(
    name="train",
    no_args_is_help=True,
    help="Train a drafter for a target on text that the target wrote.",
)

Target = Annotated[Path, typer.Option(help="Folder of the target.", exists=True, file_okay=False)]
Corpora = Annotated[
    list[Path],
    typer.Option(
        "--corpus",
        help="JSONL of answers that the target wrote, plain or .xz; may repeat.",
        exists=True,
        dir_okay=False,
    ),
]
Out = Annotated[
    Path,
    typer.Option(help="Folder of the run; a run that is found there goes on.", file_okay=False),
]
Layers = Annotated[str, typer.Option(help="Layers of the target that are kept, such as 0,1,28,29.")]
DraftVocabSize = Annotated[
    int, typer.Option(help="Ids that can be proposed: the target's most frequent; 0: all.", min=0)
]
NumTokens = Annotated[
    int, typer.Option(help="Tokens to read, prompts and repetitions included.", min=1)
]
TokensPerBatch = Annotated[int, typer.Option(help="Tokens of one step.", min=16)]
LearningRate = Annotated[float, typer.Option(help="Peak of the learning rate.", min=0.0)]
Seed = Annotated[int, typer.Option(help="Decides the order of the examples.", min=0)]
Excluded = Annotated[
    list[Path] | None,
    typer.Option(
        "--exclude",
        help="JSONL of questions to measure on, which are never trained on; may repeat.",
        exists=True,
        dir_okay=False,
    ),
]
MaxLength = Annotated[int, typer.Option(help="Longer examples are left out.", min=2)]
StartFrom = Annotated[
    Path | None,
    typer.Option(help="Folder of a trained drafter to begin with.", exists=True, file_okay=False),
]
NumThreads = Annotated[int, typer.Option(help="Threads; 0 takes every core.", min=0)]
DEFAULT_LAYERS = "0,1,2,3,28,29"  # of thirty: the first four and the last two


@app.command("draft-model")
def draft_model(
    target: Target,
    corpus: Corpora,
    out: Out,
    layers: Layers = DEFAULT_LAYERS,
    draft_vocab_size: DraftVocabSize = 8192,
    num_tokens: NumTokens = 4_000_000,
    tokens_per_batch: TokensPerBatch = 2048,
    learning_rate: LearningRate = 6e-4,
    num_frozen: Annotated[
        int, typer.Option(help="First layers that stay as the target has them.", min=0)
    ] = 0,
    max_length: MaxLength = 512,
    exclude: Excluded = None,
    start_from: StartFrom = None,
    seed: Seed = 0,
    num_threads: NumThreads = 0,
) -> None:
    """Train a small draft model that proposes token after token."""
    _train(
        _Flags(
            target,
            tuple(corpus),
            out,
            layers,
            draft_vocab_size,
            num_tokens,
            tokens_per_batch,
            learning_rate,
            num_frozen,
            max_length,
            tuple(exclude or ()),
            start_from,
            seed,
            num_threads,
        ),
        num_parallel=1,
    )


@app.command("parallel")
def parallel(
    target: Target,
    corpus: Corpora,
    out: Out,
    num_parallel: Annotated[
        int, typer.Option(help="Tokens that one pass proposes.", min=2, max=32)
    ] = 6,
    layers: Layers = DEFAULT_LAYERS,
    draft_vocab_size: DraftVocabSize = 8192,
    num_tokens: NumTokens = 4_000_000,
    tokens_per_batch: TokensPerBatch = 2048,
    learning_rate: LearningRate = 6e-4,
    num_frozen: Annotated[
        int, typer.Option(help="First layers that stay as the target has them.", min=0)
    ] = 0,
    max_length: MaxLength = 512,
    exclude: Excluded = None,
    start_from: StartFrom = None,
    seed: Seed = 0,
    num_threads: NumThreads = 0,
) -> None:
    """Train a small draft model that proposes several tokens in one pass (PARD)."""
    _train(
        _Flags(
            target,
            tuple(corpus),
            out,
            layers,
            draft_vocab_size,
            num_tokens,
            tokens_per_batch,
            learning_rate,
            num_frozen,
            max_length,
            tuple(exclude or ()),
            start_from,
            seed,
            num_threads,
        ),
        num_parallel=num_parallel,
    )


@dataclass(frozen=True, slots=True)
class _Flags:
    target: Path
    corpus: tuple[Path, ...]
    out: Path
    layers: str
    draft_vocab_size: int
    num_tokens: int
    tokens_per_batch: int
    learning_rate: float
    num_frozen: int
    max_length: int
    exclude: tuple[Path, ...]
    start_from: Path | None
    seed: int
    num_threads: int


def _train(flags: _Flags, *, num_parallel: int) -> None:
    # Imported late: only this command needs torch in the process of the command line.
    import torch

    from outrider.training.draft_model import DraftModelShape
    from outrider.training.run import RunOptions, finish_run, prepare_run
    from outrider.training.trainer import TrainSettings

    if flags.num_threads:
        torch.set_num_threads(flags.num_threads)
    options = RunOptions(
        target=flags.target,
        corpus=flags.corpus,
        folder=flags.out,
        shape=DraftModelShape(
            read_layers(flags.layers), num_parallel=num_parallel, num_frozen=flags.num_frozen
        ),
        draft_vocab_size=flags.draft_vocab_size,
        settings=TrainSettings(
            num_tokens=flags.num_tokens,
            tokens_per_batch=flags.tokens_per_batch,
            learning_rate=flags.learning_rate,
            seed=flags.seed,
        ),
        excluded=flags.exclude,
        max_length=flags.max_length,
        start_from=flags.start_from,
        command=shlex.join(["outrider", *sys.argv[1:]]),
    )
    console = plain_console()
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[facts]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
    )
    told = Told(bar)
    prepared = prepare_run(options, told)
    corpus = prepared.corpus
    console.print(
        f"{len(corpus.training):,} examples, {len(corpus.held_out):,} held out, "
        f"{corpus.num_excluded} excluded, {corpus.num_too_long} too long; "
        f"{prepared.trainer.num_steps:,} steps"
    )
    with bar:
        told.begin(prepared.trainer.num_steps)
        prepared.trainer.run()
    console.print(str(finish_run(prepared, options)), soft_wrap=True)


@dataclass(slots=True)
class Told:
    """Shows a run on a progress bar; a line of its own for every measure."""

    bar: Progress
    num_measures: int = 0
    _task: TaskID = field(init=False)

    def begin(self, num_steps: int) -> None:
        """Show an empty bar."""
        self._task = self.bar.add_task("training", total=num_steps, facts="")

    def __call__(self, progress: "Trained") -> None:
        """Show where the run is."""
        recent = progress.losses[-20:]
        speed = progress.num_tokens / max(progress.train_s, 1e-9)
        facts = f"loss {sum(recent) / len(recent):.3f}  {speed:,.0f} tokens/s"
        self.bar.update(self._task, completed=progress.step, facts=facts)
        for each in progress.measures[self.num_measures :]:
            self.bar.console.print(
                f"{each.num_tokens:>10,} tokens: loss {each.loss:.3f}, agreement "
                f"{each.agreement:.1%}, mean acceptance length {each.mean_acceptance_length:.2f}",
                soft_wrap=True,
            )
        self.num_measures = len(progress.measures)


def read_layers(text: str) -> tuple[int, ...]:
    """Return the layers that a flag names.

    Raises: InvalidField naming the flag.
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise InvalidField("--layers", f"{text!r} is no list such as 0,1,28,29") from error
