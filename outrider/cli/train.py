"""``outrider write`` and ``train``: a target writes, and a drafter for it is made of that."""

import asyncio
import json
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from outrider.cli.invocation import invocation
from outrider.cli.render import plain_console
from outrider.errors import InvalidField, OutriderError

if TYPE_CHECKING:
    from outrider.training.recipe import Shape
    from outrider.training.trainer import Progress as Trained

DEFAULT_LAYERS = "0,1,2,3,28,29"  # of thirty: the first four and the last two
DEFAULT_NUM_PARALLEL = 6
LINE_EVERY = 50  # steps, where no bar can be drawn


class Kind(StrEnum):
    """What is trained."""

    DRAFT_MODEL = "draft-model"
    PARALLEL = "parallel"
    EAGLE3 = "eagle3"
    MEDUSA = "medusa"
    REDRAFTER = "redrafter"


MODELS = (Kind.DRAFT_MODEL, Kind.PARALLEL)
LEARNING_RATES = {True: 8e-4, False: 2.5e-3}
"""Of draft models; of heads."""


@dataclass(frozen=True, slots=True)
class TrainOptions:
    """What the flags say."""

    kind: Kind
    target: Path
    corpus: tuple[Path, ...]
    out: Path
    layers: str
    num_frozen: int
    num_parallel: int
    draft_vocab_size: int
    num_tokens: int
    tokens_per_batch: int
    learning_rate: float
    max_length: int
    exclude: tuple[Path, ...]
    start_from: Path | None
    seed: int
    num_threads: int
    tap_layers: str
    num_steps: int
    num_heads: int
    num_head_layers: int
    features: Path | None
    device: str


def run_train(flags: TrainOptions) -> None:
    """Train to the end, from where an interrupted run stopped.

    Raises: InvalidField naming a flag; RunMismatch if the folder holds another run.
    """
    # Imported late: only this command needs torch in the process of the command line.
    import torch

    from outrider.training.run import RunOptions, finish_run, prepare_run
    from outrider.training.trainer import TrainSettings

    if flags.num_threads:
        torch.set_num_threads(flags.num_threads)
    options = RunOptions(
        target=flags.target,
        corpus=flags.corpus,
        folder=flags.out,
        shape=_shape(flags),
        draft_vocab_size=flags.draft_vocab_size,
        settings=TrainSettings(
            num_tokens=flags.num_tokens,
            tokens_per_batch=flags.tokens_per_batch,
            learning_rate=flags.learning_rate or LEARNING_RATES[flags.kind in MODELS],
            seed=flags.seed,
        ),
        excluded=flags.exclude,
        max_length=flags.max_length,
        start_from=flags.start_from,
        command=invocation(),
        device=flags.device,
        features=flags.features,
    )
    console = plain_console()
    bar = _bar(console)
    told = Told(bar)
    try:
        prepared = prepare_run(options, told)
    except (OSError, ValueError) as error:
        raise OutriderError(str(error)) from error
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


def _shape(flags: TrainOptions) -> "Shape":
    """Return what the flags describe; those that are not given leave the shape's own defaults.

    Raises: InvalidField naming a flag that is for another kind.
    """
    _refuse_flags_of_other_kinds(flags)
    if flags.kind in (Kind.DRAFT_MODEL, Kind.PARALLEL):
        from outrider.training.draft_model import DraftModelShape

        num_parallel = flags.num_parallel or DEFAULT_NUM_PARALLEL
        return DraftModelShape(
            read_layers("--layers", flags.layers or DEFAULT_LAYERS),
            num_parallel=1 if flags.kind is Kind.DRAFT_MODEL else num_parallel,
            num_frozen=flags.num_frozen,
        )
    taps = default_taps(flags.target)
    steps = {"num_steps": flags.num_steps} if flags.num_steps else {}
    layers = {"num_layers": flags.num_head_layers} if flags.num_head_layers else {}
    if flags.kind is Kind.EAGLE3:
        from outrider.training.eagle import EagleShape

        named = read_layers("--tap-layers", flags.tap_layers) if flags.tap_layers else taps
        return EagleShape(named, **steps)
    if flags.kind is Kind.MEDUSA:
        from outrider.training.medusa import MedusaShape

        heads = {"num_heads": flags.num_heads} if flags.num_heads else {}
        return MedusaShape(taps[-1:], **heads, **layers)
    from outrider.training.redrafter import ReDrafterShape

    return ReDrafterShape(taps[-1:], **steps, **layers)


def _refuse_flags_of_other_kinds(flags: TrainOptions) -> None:
    """Raises: InvalidField naming the first flag that says nothing about this kind."""
    models = (Kind.DRAFT_MODEL, Kind.PARALLEL)
    heads = (Kind.EAGLE3, Kind.MEDUSA, Kind.REDRAFTER)
    given: list[tuple[str, object, tuple[Kind, ...]]] = [
        ("--layers", flags.layers, models),
        ("--num-frozen", flags.num_frozen, models),
        ("--num-parallel", flags.num_parallel, (Kind.PARALLEL,)),
        ("--tap-layers", flags.tap_layers, (Kind.EAGLE3,)),
        ("--num-steps", flags.num_steps, (Kind.EAGLE3, Kind.REDRAFTER)),
        ("--num-heads", flags.num_heads, (Kind.MEDUSA,)),
        ("--num-head-layers", flags.num_head_layers, (Kind.MEDUSA, Kind.REDRAFTER)),
        ("--features", flags.features, heads),
    ]
    for flag, value, kinds in given:
        if value and flags.kind not in kinds:
            plural = "kind" if len(kinds) == 1 else "kinds"
            raise InvalidField(flag, f"is for the {plural} {', '.join(kinds)}, not {flags.kind}")


def default_taps(target: Path) -> tuple[int, ...]:
    """Return a layer below the middle, one above, and what the target's head reads.

    Raises: InvalidField if the target states no number of layers.
    """
    try:
        config = json.loads((target / "config.json").read_bytes())
        num_layers = int((config.get("text_config") or config)["num_hidden_layers"])
    except (OSError, ValueError, KeyError) as error:
        raise InvalidField("--target", f"{target} states no number of layers: {error}") from error
    return (num_layers * 3 // 10, num_layers * 7 // 10, num_layers)


@dataclass(frozen=True, slots=True)
class WriteOptions:
    """What the flags say."""

    target: Path
    out: Path
    num_examples: int
    prompts: Path | None
    max_answer_tokens: int
    num_together: int
    seed: int
    dtype: str
    device: str


def run_write(flags: WriteOptions) -> None:
    """Let the target write a corpus.

    Raises: InvalidField naming a flag or a line of the prompts; OutriderError for unusable models.
    """
    from outrider.training.corpus import read_user_messages
    from outrider.training.writing import Writer, WritingOptions

    messages = () if flags.prompts is None else tuple(read_user_messages(flags.prompts))
    if flags.prompts is not None and not messages:
        raise InvalidField("--prompts", f"{flags.prompts} holds no messages")
    options = WritingOptions(
        target=flags.target,
        out=flags.out,
        num_examples=flags.num_examples,
        messages=messages,
        max_answer_tokens=flags.max_answer_tokens,
        num_together=flags.num_together,
        seed=flags.seed,
        dtype=flags.dtype,
        device=flags.device,
    )
    console = plain_console()
    bar = _bar(console)
    with bar:
        task = bar.add_task("writing", total=flags.num_examples, facts="")

        def told(num_written: int) -> None:
            bar.update(task, completed=num_written)
            if bar.disable:
                console.print(f"{num_written:,} of {flags.num_examples:,} examples")

        try:
            num_written = asyncio.run(Writer(options, told).run())
        except (OSError, ValueError) as error:
            raise OutriderError(str(error)) from error
    console.print(f"{flags.out}: {num_written:,} examples", soft_wrap=True)


def _bar(console: Console) -> Progress:
    """Return a progress bar, silent where it could not be drawn."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[facts]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=console,
        disable=not console.is_terminal,
    )


@dataclass(slots=True)
class Told:
    """Shows a run on a progress bar; a line of its own for every measure."""

    bar: Progress
    num_measures: int = 0
    num_steps: int = 0
    _task: TaskID = field(init=False)

    def begin(self, num_steps: int) -> None:
        """Show an empty bar."""
        self.num_steps = num_steps
        self._task = self.bar.add_task("training", total=num_steps, facts="")

    def __call__(self, progress: "Trained") -> None:
        """Show where the run is."""
        recent = progress.losses[-20:]
        speed = progress.num_tokens / max(progress.train_s, 1e-9)
        facts = f"loss {sum(recent) / len(recent):.3f}  {speed:,.0f} tokens/s"
        self.bar.update(self._task, completed=progress.step, facts=facts)
        if self.bar.disable and progress.step % LINE_EVERY == 0:
            self.bar.console.print(f"step {progress.step:,} of {self.num_steps:,}  {facts}")
        for each in progress.measures[self.num_measures :]:
            self.bar.console.print(
                f"{each.num_tokens:>10,} tokens: loss {each.loss:.3f}, agreement "
                f"{each.agreement:.1%}, mean acceptance length {each.mean_acceptance_length:.2f}",
                soft_wrap=True,
            )
        self.num_measures = len(progress.measures)


def read_layers(flag: str, text: str) -> tuple[int, ...]:
    """Return the layers that a flag names.

    Raises: InvalidField naming the flag.
    """
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError as error:
        raise InvalidField(flag, f"{text!r} is no list such as 0,1,28,29") from error
