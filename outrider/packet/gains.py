"""What drafts gained over the control that ran beside them, and where the time went.

Everything is worked out from receipts. A token behind the first takes the control ``verify`` ms at
the verifier and ``rest`` ms elsewhere. What drafts did to the same number of tokens is then

    net = saved - verify - draft - scheduling

    saved       passes not taken, each at the control's time at the verifier
    verify      what the passes that were taken took longer than the control's
    draft       waits for drafts
    scheduling  all else between the first token and the last (network, the orchestrator), beyond
                what the control would have taken for as many tokens

and net is exactly what the control would have taken for these tokens less what they took.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from outrider.packet.finished import Finished, Groups

CONFIDENCE = 0.95
NUM_RESAMPLES = 2000
SEED = 0
MIN_REQUESTS = 3  # on either side, below which nothing is said of a gain

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Gain:
    """Tokens per second behind the first over those of the control, with its interval."""

    value: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """What the interval lets one say."""
        if self.low > 1:
            return "gains"
        return "loses" if self.high < 1 else "unsure"


@dataclass(frozen=True, slots=True)
class Pace:
    """What a later token takes without drafts, in milliseconds."""

    verify_ms: float
    rest_ms: float


@dataclass(frozen=True, slots=True)
class Saving:
    """Where time was saved and spent, in milliseconds of all requests together."""

    alone_ms: float
    """What the control would have taken."""
    saved_ms: float
    verify_ms: float
    draft_ms: float
    scheduling_ms: float

    @property
    def net_ms(self) -> float:
        """Saved less what it cost."""
        return self.saved_ms - self.verify_ms - self.draft_ms - self.scheduling_ms

    @property
    def net_share(self) -> float:
        """Of what the control would have taken."""
        return self.net_ms / self.alone_ms if self.alone_ms else 0.0


def gain(groups: Groups) -> Gain | None:
    """Return the gain of a group; None where one side has too little to compare.

    The interval is a percentile bootstrap over requests.
    """
    sides = (groups.decided, groups.control)
    if min(len([each for each in side if each.num_later_tokens]) for side in sides) < MIN_REQUESTS:
        return None
    # Imported late: nothing else here needs it.
    from scipy.stats import bootstrap

    (tokens, times), (control_tokens, control_times) = (_tokens_and_times(side) for side in sides)

    def statistic(
        decided: npt.NDArray[np.int64], control: npt.NDArray[np.int64], axis: int = -1
    ) -> Floats:
        rate = tokens[decided].sum(axis) / times[decided].sum(axis)
        alone = control_tokens[control].sum(axis) / control_times[control].sum(axis)
        found: Floats = rate / alone
        return found

    indices = np.arange(len(tokens)), np.arange(len(control_tokens))
    found = bootstrap(
        indices,
        statistic,
        n_resamples=NUM_RESAMPLES,
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(SEED),
    ).confidence_interval
    return Gain(float(statistic(*indices)), float(found.low), float(found.high))


def pace(control: Sequence[Finished]) -> Pace | None:
    """Return the pace of requests without drafts; None where they have no later token."""
    num_tokens = sum(each.num_later_tokens for each in control)
    if not num_tokens:
        return None
    verify_ms = sum(each.later_verify_ms for each in control)
    rest_ms = sum(each.later_ms - each.later_verify_ms - each.receipt.draft_ms for each in control)
    return Pace(verify_ms / num_tokens, rest_ms / num_tokens)


def saving(decided: Sequence[Finished], alone: Pace) -> Saving:
    """Return where the time of requests went, beside a pace without drafts."""
    num_tokens = sum(each.num_later_tokens for each in decided)
    num_cycles = sum(each.num_later_cycles for each in decided)
    verify_ms = sum(each.later_verify_ms for each in decided)
    draft_ms = sum(each.receipt.draft_ms for each in decided)
    rest_ms = sum(each.later_ms for each in decided) - verify_ms - draft_ms
    return Saving(
        alone_ms=num_tokens * (alone.verify_ms + alone.rest_ms),
        saved_ms=(num_tokens - num_cycles) * alone.verify_ms,
        verify_ms=verify_ms - num_cycles * alone.verify_ms,
        draft_ms=draft_ms,
        scheduling_ms=rest_ms - num_tokens * alone.rest_ms,
    )


def _tokens_and_times(requests: Sequence[Finished]) -> tuple[Floats, Floats]:
    some = [each for each in requests if each.num_later_tokens]
    tokens = np.array([each.num_later_tokens for each in some], dtype=np.float64)
    return tokens, np.array([each.later_ms for each in some])
