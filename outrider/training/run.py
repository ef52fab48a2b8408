"""A training run from files to files: corpus in, drafter and card out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from outrider.checkpoints.pretrained import pretrained_digest
from outrider.errors import InvalidField
from outrider.identity.files import TokenizerFiles
from outrider.identity.weights import weights_digest
from outrider.text import TextCodec
from outrider.training.card import write_card
from outrider.training.corpus import Corpus, read_corpus, read_questions
from outrider.training.recipe import Ingredients, Shape
from outrider.training.trainer import Progress, Trainer, TrainSettings
from outrider.training.vocabulary import DraftVocabulary, choose_vocabulary


@dataclass(frozen=True, slots=True)
class RunOptions:
    """What to train, on what, and where results go.

    ``excluded``: JSONL files of questions that must not be trained on. ``start_from``: a folder
    that this trainer wrote, whose weights are trained on.
    """

    target: Path
    corpus: tuple[Path, ...]
    folder: Path
    shape: Shape
    draft_vocab_size: int
    settings: TrainSettings
    excluded: tuple[Path, ...] = ()
    max_length: int = 512
    start_from: Path | None = None
    command: str = ""
    device: str = "cpu"
    features: Path | None = None
    """Where hidden states of the target are kept; None: in the folder of the run."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run before its first step."""

    trainer: Trainer
    corpus: Corpus
    vocabulary: DraftVocabulary


def prepare_run(options: RunOptions, told: Callable[[Progress], None]) -> Prepared:
    """Read corpus and target.

    Raises: InvalidField naming a flag or a line of the corpus; OSError.
    """
    target = options.target
    codec = TextCodec(TokenizerFiles.from_folder(target))
    if not codec.has_chat_template:
        raise InvalidField("--target", f"{target} has no chat template to put messages in")

    def encode(user: str) -> Sequence[int]:
        return codec.apply_chat_template([{"role": "user", "content": user}])

    vocab_size = codec.vocab_size
    corpus = read_corpus(
        options.corpus,
        encode,
        vocab_size=vocab_size,
        max_length=options.max_length,
        excluded=[text for path in options.excluded for text in read_questions(path)],
    )
    if not corpus.training:
        raise InvalidField("--corpus", "no examples to train on")
    if not any(each.is_greedy for each in corpus.held_out):
        raise InvalidField(
            "--corpus",
            "none of the greedy answers is held out to measure on; more examples are needed",
        )
    vocabulary = choose_vocabulary(
        corpus.training, size=options.draft_vocab_size, vocab_size=vocab_size
    )
    device = torch.device(options.device)
    features = options.features or options.folder / "features"
    torch.manual_seed(options.settings.seed)  # weights that no target gives begin at random
    recipe = options.shape.build(Ingredients(target, vocabulary, options.folder, features, device))
    if options.start_from is not None:
        recipe.load(options.start_from)
    cast(nn.Module, recipe).to(device)
    trainer = Trainer(
        recipe,
        corpus,
        options.settings,
        options.folder,
        facts=_facts(options, weights_digest(target)),
        told=told,
        device=device,
    )
    return Prepared(trainer, corpus, vocabulary)


def finish_run(prepared: Prepared, options: RunOptions) -> Path:
    """Write weights, card and plot of what was trained so far; return their folder."""
    folder = options.folder / "drafter"
    recipe = prepared.trainer.recipe
    digest = weights_digest(options.target)
    recipe.save(folder, trained_for=digest)
    write_card(
        folder,
        prepared.trainer.progress,
        {
            **_facts(options, digest),
            "description": options.shape.description,
            "command": options.command,
            "settings": options.settings,
            "num_examples": len(prepared.corpus.training),
            "num_held_out": len(prepared.corpus.held_out),
            "num_excluded": prepared.corpus.num_excluded,
            "num_too_long": prepared.corpus.num_too_long,
            "corpus_digest": prepared.corpus.digest,
            "draft_vocab_coverage": prepared.vocabulary.coverage(prepared.corpus.held_out),
            "num_parameters": sum(
                each.numel() for each in cast(nn.Module, recipe).parameters() if each.requires_grad
            ),
            "torch": torch.__version__,
        },
    )
    return folder


def _facts(options: RunOptions, digest: str) -> dict[str, Any]:
    """What makes a run what it is, beside its settings and its corpus."""
    return {
        "kind": options.shape.kind,
        "target": options.target.name,
        "target_weights_digest": digest,
        **options.shape.facts(),
        "draft_vocab_size": options.draft_vocab_size,
        "max_length": options.max_length,
        "corpus": [path.name for path in options.corpus],
        "start_from": None if options.start_from is None else pretrained_digest(options.start_from),
        "num_threads": torch.get_num_threads(),  # sums are split among them
    }
