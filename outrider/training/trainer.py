"""The training loop: one for every kind of drafter, and it goes on where it was interrupted.

What happens at a step depends on the settings, the corpus and the step alone, so a run that was
killed and resumed ends with the very weights of an unbroken one (on the same machine and number of
threads).
"""

import json
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import nn

from outrider.errors import OutriderError
from outrider.training.batches import BatchPlan, batches_of
from outrider.training.corpus import Corpus, Example
from outrider.training.recipe import Recipe
from outrider.training.replay import Replay

CHECKPOINT_NAME = "checkpoint.pt"
BETAS = (0.9, 0.95)
LAST_RATE = 0.05  # of the peak, at the end of the cosine
MAX_GRADIENT_NORM = 1.0
MILESTONES = (100_000, 300_000, 1_000_000)
"""Tokens read, at which everybody's acceptance is measured, so that runs can be compared."""


class RunMismatch(OutriderError):
    """The folder holds the checkpoint of another run."""


@dataclass(frozen=True, slots=True)
class TrainSettings:
    """How long and how fast; ``num_tokens`` counts prompts too, and repeated reading.

    Units: tokens, steps, seconds.
    """

    num_tokens: int
    tokens_per_batch: int = 2048
    learning_rate: float = 6e-4
    warmup_share: float = 0.04
    weight_decay: float = 0.01
    seed: int = 0
    checkpoint_s: float = 120.0
    tokens_between_measures: int = 250_000
    num_measured: int = 64
    """Held-out answers that are replayed; greedy ones."""

    def rate(self, step: int, num_steps: int) -> float:
        """Return the learning rate of a step: a linear rise, then a cosine to a twentieth."""
        warmup = max(1, round(self.warmup_share * num_steps))
        if step < warmup:
            return self.learning_rate * (step + 1) / warmup
        done = (step - warmup) / max(1, num_steps - warmup)
        share = LAST_RATE + (1 - LAST_RATE) * 0.5 * (1 + math.cos(math.pi * done))
        return self.learning_rate * share


@dataclass(frozen=True, slots=True)
class Measure:
    """Acceptance on held-out answers after so many tokens."""

    num_tokens: int
    loss: float
    """Mean training loss since the measure before."""
    agreement: float
    mean_acceptance_length: float
    acceptance_by_position: list[float]


@dataclass(slots=True)
class Progress:
    """Where a run is."""

    step: int = 0
    num_tokens: int = 0
    train_s: float = 0.0
    num_measured_steps: int = 0
    """Steps before the last measure."""
    losses: list[float] = field(default_factory=list)
    measures: list[Measure] = field(default_factory=list)


@dataclass(slots=True)
class Trainer:
    """Trains a recipe on a corpus in a folder that keeps its checkpoint.

    ``told`` is called after every step and every measure.
    """

    recipe: Recipe
    corpus: Corpus
    settings: TrainSettings
    folder: Path
    facts: dict[str, Any]
    """What else makes a run what it is: kind, layers, files; compared on resuming."""
    told: Callable[[Progress], None] = lambda _: None
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    clock: Callable[[], float] = time.monotonic
    progress: Progress = field(default_factory=Progress)
    _optimizer: torch.optim.AdamW = field(init=False)
    _plan: BatchPlan = field(init=False)

    def __post_init__(self) -> None:
        matrices = [p for p in self._parameters if p.dim() >= 2]
        others = [p for p in self._parameters if p.dim() < 2]
        self._optimizer = torch.optim.AdamW(
            [
                {"params": matrices, "weight_decay": self.settings.weight_decay},
                {"params": others, "weight_decay": 0.0},
            ],
            lr=self.settings.learning_rate,
            betas=BETAS,
        )
        self._plan = BatchPlan(
            self.corpus.training,
            self.settings.num_tokens,
            self.settings.tokens_per_batch,
            self.settings.seed,
        )

    @property
    def module(self) -> nn.Module:
        """The recipe as a module."""
        return cast(nn.Module, self.recipe)

    @property
    def num_steps(self) -> int:
        """Steps of the whole run."""
        return len(self._plan)

    @property
    def _parameters(self) -> list[nn.Parameter]:
        return [each for each in self.module.parameters() if each.requires_grad]

    def run(self) -> Progress:
        """Train to the end, from the checkpoint if there is one.

        An interrupt leaves the last checkpoint behind, at most ``checkpoint_s`` old.

        Raises: RunMismatch if the checkpoint belongs to other settings.
        """
        self._resume()
        saved_at = self.clock()
        while self.progress.step < self.num_steps:
            self._step()
            if self._is_measure_due():
                self._measure()
            self.told(self.progress)
            if self.clock() - saved_at >= self.settings.checkpoint_s:
                self._save()
                saved_at = self.clock()
        self._save()
        return self.progress

    def _step(self) -> None:
        began = self.clock()
        progress = self.progress
        batch = self._plan.batch(progress.step).to(self.device)
        rate = self.settings.rate(progress.step, self.num_steps)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        generator = np.random.default_rng([self.settings.seed, 1, progress.step])
        loss = self.recipe.loss(batch, generator)
        self._optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(self._parameters, MAX_GRADIENT_NORM)
        self._optimizer.step()
        progress.step += 1
        progress.num_tokens += batch.num_tokens
        progress.losses.append(float(loss.detach()))
        progress.train_s += self.clock() - began

    def _is_measure_due(self) -> bool:
        last = self.progress.measures[-1].num_tokens if self.progress.measures else 0
        now = self.progress.num_tokens
        if self.progress.step == self.num_steps:
            return True
        if any(last < milestone <= now for milestone in MILESTONES):
            return True
        return now - last >= self.settings.tokens_between_measures

    def _measure(self) -> None:
        replay = replay_greedy(self.recipe, self.corpus.held_out, self.settings, self.device)
        recent = self.progress.losses[self.progress.num_measured_steps :]
        self.progress.num_measured_steps = self.progress.step
        self.progress.measures.append(
            Measure(
                num_tokens=self.progress.num_tokens,
                loss=sum(recent) / max(len(recent), 1),
                agreement=replay.agreement,
                mean_acceptance_length=replay.mean_acceptance_length,
                acceptance_by_position=replay.acceptance_by_position,
            )
        )

    def _identity(self) -> dict[str, Any]:
        settings = asdict(self.settings)
        del settings["checkpoint_s"]  # changes nothing of the result
        return {"settings": settings, "facts": self.facts, "corpus": self.corpus.digest}

    def _save(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        temporary = self.folder / f".{CHECKPOINT_NAME}"
        state = {
            "identity": json.dumps(self._identity(), sort_keys=True),
            "module": self.module.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "progress": json.dumps(asdict(self.progress)),
        }
        torch.save(state, temporary)
        temporary.replace(self.folder / CHECKPOINT_NAME)  # so that a kill never leaves half of one

    def _resume(self) -> None:
        path = self.folder / CHECKPOINT_NAME
        if not path.exists():
            return
        state = torch.load(path, weights_only=True, map_location=self.device)
        there, here = json.loads(state["identity"]), json.loads(json.dumps(self._identity()))
        if there != here:
            raise RunMismatch(
                f"{path} belongs to another run: {', '.join(differing(there, here))}; "
                "go on with the same settings, or choose an empty folder"
            )
        self.module.load_state_dict(state["module"])
        self._optimizer.load_state_dict(state["optimizer"])
        progress = json.loads(state["progress"])
        measures = [Measure(**each) for each in progress.pop("measures")]
        self.progress = Progress(**progress, measures=measures)


def replay_greedy(
    recipe: Recipe, examples: Sequence[Example], settings: TrainSettings, device: torch.device
) -> Replay:
    """Replay the first greedy answers among the examples."""
    greedy = [each for each in examples if each.is_greedy][: settings.num_measured]
    replay = Replay(recipe.num_draft_tokens)
    for batch in batches_of(greedy, settings.tokens_per_batch):
        for agrees in recipe.agreements(batch.to(device)):
            replay.add(agrees.tolist())
    return replay


def differing(there: dict[str, Any], here: dict[str, Any], prefix: str = "") -> list[str]:
    """Name what differs: ``settings.seed was 0, is 1``."""
    found: list[str] = []
    for name in sorted({*there, *here}):
        old, new = there.get(name), here.get(name)
        if isinstance(old, dict) and isinstance(new, dict):
            found += differing(old, new, f"{prefix}{name}.")
        elif old != new:
            found.append(f"{prefix}{name} was {old}, is {new}")
    return found
