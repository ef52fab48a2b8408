"""Which draft length of which source pays at which load, predicted and then measured."""

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from outrider.advisor.curves import (
    Acceptance,
    CycleTimes,
    acceptance,
    cycle_times,
    decoding,
    expected_accepted,
)
from outrider.advisor.runs import Run, Setting
from outrider.gain import MIN_GAIN, cycles_ms, rates

Lane = tuple[float, str]
"""Temperature and source."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What a setting promises. ``accepted`` tokens are expected of a draft, ``arrival`` is the
    share of wanted drafts that come; ``gain`` is over target-only under the same load."""

    setting: Setting
    accepted: float
    arrival: float
    cycle_ms: float
    tokens_per_s: float
    gain: float


@dataclass(frozen=True, slots=True)
class Check:
    """A setting and target-only, in turn, for some rounds. Rates are tokens per second of a
    stream; ``gains`` are by round."""

    setting: Setting
    tokens_per_s: float
    alone_tokens_per_s: float
    gains: tuple[float, ...]
    num_answers: int
    num_differing: int

    @property
    def gain(self) -> float:
        """The median of the rounds."""
        return statistics.median(self.gains)

    @property
    def confirms(self) -> bool:
        """True if the setting gained, and was slower in no round."""
        return self.gain >= MIN_GAIN and min(self.gains) >= 1


@dataclass(frozen=True, slots=True)
class Advice:
    """What is best at one temperature and load, and whether it pays.

    ``check`` is there where the prediction says that it pays.
    """

    best: Prediction
    check: Check | None = None

    @property
    def is_promising(self) -> bool:
        """True where the prediction says that it pays."""
        return self.best.gain >= MIN_GAIN

    @property
    def pays(self) -> bool:
        """True where it was measured too: unsure means target-only."""
        return self.is_promising and self.check is not None and self.check.confirms


def acceptances(runs: Iterable[Run]) -> dict[Lane, dict[int, Acceptance]]:
    """Return what became of drafts, by temperature and source, then by draft length.

    The load has no say in it, so that runs under all loads count together.
    """
    grouped: dict[Lane, dict[int, list[Run]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        setting = run.setting
        if setting.source:
            lane = setting.temperature, setting.source
            grouped[lane][setting.num_draft_tokens].append(run)
    return {
        lane: {
            length: acceptance(
                [cycle for run in together for cycle in decoding(run.answers)], length
            )
            for length, together in sorted(by_length.items())
        }
        for lane, by_length in grouped.items()
    }


def times(runs: Iterable[Run]) -> dict[Setting, CycleTimes]:
    """Return what cycles took, by setting."""
    return {run.setting: cycle_times(decoding(run.answers)) for run in runs}


def predictions(
    accepted: Mapping[Lane, Mapping[int, Acceptance]], measured: Mapping[Setting, CycleTimes]
) -> list[Prediction]:
    """Return what every setting but target-only promises, in the order of ``measured``."""
    found = []
    expected = {lane: expected_accepted(by_length) for lane, by_length in accepted.items()}
    for setting, cycle in measured.items():
        if not setting.source:
            continue
        lane = setting.temperature, setting.source
        alone = measured[setting.alone]
        arrival = accepted[lane][setting.num_draft_tokens].arrival
        tokens = expected[lane][setting.num_draft_tokens]
        taken = cycles_ms(
            [0.0, cycle.wait_ms], [alone.verification_ms, cycle.verification_ms], arrival
        )
        without, with_draft = rates([0.0, tokens], taken, arrival)
        found.append(
            Prediction(
                setting=setting,
                accepted=tokens,
                arrival=arrival,
                cycle_ms=taken[1],
                tokens_per_s=1e3 * with_draft,
                gain=with_draft / without,
            )
        )
    return found


def best_by_load(found: Sequence[Prediction]) -> list[Prediction]:
    """Return the most promising setting at each temperature and load."""
    best: dict[Setting, Prediction] = {}
    for each in found:
        place = each.setting.alone
        if place not in best or each.gain > best[place].gain:
            best[place] = each
    return list(best.values())


def check_of(rounds: Sequence[tuple[Run, Run]]) -> Check:
    """Compare runs of a setting with target-only ones of the same round, which come second."""
    runs, alone = zip(*rounds, strict=True)
    return Check(
        setting=runs[0].setting,
        tokens_per_s=statistics.median(run.tokens_per_s for run in runs),
        alone_tokens_per_s=statistics.median(run.tokens_per_s for run in alone),
        gains=tuple(run.tokens_per_s / other.tokens_per_s for run, other in rounds),
        num_answers=sum(len(run.answers) for run in runs),
        num_differing=sum(run.num_differing(other) for run, other in rounds),
    )
