"""Whether tasks are solved as well with speculation as without, and by the very same outputs."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from outrider.audit.asking import Answer
from outrider.audit.equality import Compared
from outrider.audit.intervals import Interval, difference, share
from outrider.audit.plan import Tolerances
from outrider.audit.view import Table, Verdict, View, verdict_of

Solved = Callable[[Answer], bool | None]
"""Whether an answer is right; None where nobody knows."""


@dataclass(frozen=True, slots=True)
class Arm:
    """The answers of one way in one mode, beside those of the target alone.

    ``compared``: where the outputs must be equal, how they compare; None where only the law is.
    """

    mode: str
    plain: Sequence[Answer]
    others: Sequence[Answer]
    compared: Compared | None


@dataclass(frozen=True, slots=True)
class Score:
    """What an arm came to: shares of tasks that are solved."""

    arm: Arm
    plain: Interval
    speculative: Interval
    num_judged: int

    @property
    def loss(self) -> Interval:
        """Share of tasks that are solved by the target alone, less that with speculation."""
        return difference(self.plain, self.speculative)

    def passes(self, max_loss: float) -> bool:
        """True if outputs that must be equal are, and no loss is shown where they need not be."""
        if self.arm.compared is not None:
            return all(each.is_tie for each in self.arm.compared.differences)
        return self.loss.low <= max_loss


def accuracy_view(
    name: str, title: str, arms: Sequence[Arm], solved: Solved, tolerances: Tolerances
) -> View:
    """Judge every arm."""
    scores = [_score(arm, solved, tolerances.confidence) for arm in arms]
    failed = [each for each in scores if not each.passes(tolerances.max_accuracy_loss)]
    vacuous = [a.compared for a in arms if a.compared is not None and a.compared.is_vacuous]
    verdict = verdict_of(not failed)
    if vacuous and not failed:
        verdict = Verdict.NOT_RUN
    return View(
        name=name,
        title=title,
        verdict=verdict,
        tolerance=(
            "equal outputs in greedy and coupled, but for declared ties; elsewhere no loss above "
            f"{tolerances.max_accuracy_loss:.0%} of the tasks is shown (lower end of the interval)"
        ),
        finding=_finding(scores, failed, bool(vacuous)),
        tables=[_table(scores)],
        data={"arms": [_json(each) for each in scores]},
    )


def _score(arm: Arm, solved: Solved, confidence: float) -> Score:
    def shared(answers: Sequence[Answer]) -> tuple[Interval, int]:
        judged = [right for right in map(solved, answers) if right is not None]
        return share(sum(judged), len(judged), confidence), len(judged)

    (plain, num), (speculative, _) = shared(arm.plain), shared(arm.others)
    return Score(arm, plain, speculative, num)


def _finding(scores: Sequence[Score], failed: Sequence[Score], is_vacuous: bool) -> str:
    if failed:
        worst = failed[0]
        compared = worst.arm.compared
        if compared is None:
            return (
                f"{worst.arm.mode}: the target alone solves {worst.loss.told()} more of the tasks"
            )
        num = sum(not each.is_tie for each in compared.differences)
        of = f"{num} of {compared.num_outputs}"
        return f"{worst.arm.mode}: {of} outputs differ from the target's own"
    if is_vacuous:
        return "nothing was drafted, so nothing was tested"
    first = scores[0]
    return (
        f"{first.arm.mode} solves {first.speculative.told('.1%')} of {first.num_judged} tasks that "
        f"can be judged, the target alone {first.plain.told('.1%')}; no output that must be equal "
        "differs"
    )


def _table(scores: Sequence[Score]) -> Table:
    headers = (
        "mode",
        "way",
        "tasks",
        "judged",
        "target-only solves",
        "speculative solves",
        "equal outputs",
    )
    rows = [
        (
            each.arm.mode,
            each.arm.others[0].ask.way.name,
            str(len(each.arm.others)),
            str(each.num_judged),
            each.plain.told(".1%"),
            each.speculative.told(".1%"),
            _equal(each.arm),
        )
        for each in scores
    ]
    return Table(headers, rows)


def _equal(arm: Arm) -> str:
    num = sum(a.token_ids == b.token_ids for a, b in zip(arm.plain, arm.others, strict=True))
    return f"{num} of {len(arm.others)}" + ("" if arm.compared else " (need not be)")


def _json(score: Score) -> dict[str, Any]:
    return {
        "mode": score.arm.mode,
        "way": score.arm.others[0].ask.way.name,
        "num_tasks": len(score.arm.others),
        "num_judged": score.num_judged,
        "target_only": score.plain.as_json(),
        "speculative": score.speculative.as_json(),
        "loss": score.loss.as_json(),
    }
