"""How many draft tokens were kept, by their place in the draft and by class of prompt."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from outrider.audit.asking import Answer
from outrider.audit.intervals import Interval, share
from outrider.audit.view import Table, Verdict, View, verdict_of

NAME, TITLE = "acceptance", "Acceptance: draft tokens kept, by position and by class"


def recounted(answer: Answer) -> bool:
    """True if the stream says of accepted tokens what the receipt says."""
    counts = Counter(answer.accepted)
    histogram = list(answer.receipt.acceptance_histogram)
    same = [counts[i] for i in range(len(histogram))] == histogram
    return same and sum(answer.accepted) == answer.receipt.num_accepted_draft_tokens


def by_position(answers: Sequence[Answer], confidence: float) -> list[Interval]:
    """Return for each place in the draft the share of verified drafts that were kept up to it."""
    cycles = [count for answer in answers for count in answer.accepted]
    longest = max(cycles, default=0)
    return [
        share(sum(count >= place for count in cycles), len(cycles), confidence)
        for place in range(1, longest + 1)
    ]


def acceptance_view(answers: Mapping[str, Sequence[Answer]], confidence: float) -> View:
    """Show acceptance; what can be wrong is that receipts do not say what was streamed."""
    every = [answer for some in answers.values() for answer in some]
    wrong = [answer for answer in every if not recounted(answer)]
    drafting = {way: some for way, some in answers.items() if any(a.accepted for a in some)}
    num = len(every)
    finding = f"all {num} receipts say what was streamed"
    if wrong:
        first = wrong[0].ask
        finding = (
            f"{len(wrong)} of {num} receipts do not say what was streamed; the first, with "
            f"{first.way.name} on prompt {first.prompt.number}"
        )
    verdict = verdict_of(not wrong)
    if not drafting and not wrong:
        verdict, finding = Verdict.NOT_RUN, "nothing was drafted"
    return View(
        name=NAME,
        title=TITLE,
        verdict=verdict,
        tolerance="every receipt's counts are those of its stream; the shares are for information",
        finding=finding,
        tables=[_positions(drafting, confidence), _classes(drafting, confidence)],
        data={way: _json(some, confidence) for way, some in drafting.items()},
    )


def _rate(answers: Sequence[Answer], confidence: float) -> Interval:
    drafted = sum(answer.receipt.num_draft_tokens for answer in answers)
    kept = sum(answer.receipt.num_accepted_draft_tokens for answer in answers)
    return share(kept, drafted, confidence)


def _length(answers: Sequence[Answer]) -> float:
    cycles = sum(len(answer.accepted) for answer in answers)
    return 1 + sum(sum(answer.accepted) for answer in answers) / max(cycles, 1)


def _positions(answers: Mapping[str, Sequence[Answer]], confidence: float) -> Table:
    headers = ("way", "drafts", "tokens a verified draft", "kept", "kept up to each position")
    rows = [
        (
            way,
            str(sum(len(answer.accepted) for answer in some)),
            f"{_length(some):.2f}",
            _rate(some, confidence).told(),
            " ".join(f"{each.value:.2f}" for each in by_position(some, confidence)),
        )
        for way, some in answers.items()
    ]
    return Table(headers, rows)


def by_class(answers: Sequence[Answer]) -> dict[str, list[Answer]]:
    """Return the answers by the class of their prompts."""
    found: dict[str, list[Answer]] = {}
    for answer in answers:
        found.setdefault(answer.ask.prompt.category, []).append(answer)
    return dict(sorted(found.items()))


def _classes(answers: Mapping[str, Sequence[Answer]], confidence: float) -> Table:
    rows = [
        (category, way, f"{_length(some):.2f}", _rate(some, confidence).told())
        for way, every in answers.items()
        for category, some in by_class(every).items()
    ]
    return Table(("class", "way", "tokens a verified draft", "kept"), sorted(rows))


def _json(answers: Sequence[Answer], confidence: float) -> dict[str, Any]:
    return {
        "num_drafts": sum(len(answer.accepted) for answer in answers),
        "mean_acceptance_length": _length(answers),
        "acceptance_rate": _rate(answers, confidence).as_json(),
        "by_position": [each.as_json() for each in by_position(answers, confidence)],
        "by_class": {
            category: {
                "mean_acceptance_length": _length(some),
                "acceptance_rate": _rate(some, confidence).as_json(),
            }
            for category, some in by_class(answers).items()
        },
    }
