"""Outputs that must be equal, id by id, and what is known of the places where they are not."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import numpy as np

from outrider.audit.asking import Answer, Asker
from outrider.audit.intervals import share
from outrider.audit.reference import Floats, Law, Reference
from outrider.audit.view import Table, Verdict, View, verdict_of
from outrider.ties import TIE

Text = tuple[tuple[int, ...], tuple[int, ...]]
"""The ids of a prompt, and of what was put out behind it."""

MAX_LISTED = 10


@dataclass(frozen=True, slots=True)
class Difference:
    """Where a speculative output parts from the target-only one.

    ``margin``: the lead with which the target alone decides there, in logits, or in noised log
    probabilities where tokens are sampled; ``is_tie``: rounding may overturn it, as declared.
    """

    way: str
    prompt: int
    position: int
    margin: float
    is_tie: bool


@dataclass(frozen=True, slots=True)
class Compared:
    """The outputs of one way beside those of the target alone."""

    way: str
    num_outputs: int
    num_tokens: int
    num_draft_tokens: int
    is_vacuous: bool
    """Drafts were to be verified and none was."""
    differences: tuple[Difference, ...]


@dataclass(frozen=True, slots=True)
class Gaps:
    """By how many logits the reference prefers another token than a way's greedy outputs hold."""

    way: str
    num_tokens: int
    num_other: int
    largest: float


def first_difference(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the first place where the ids differ, the shorter length if they do not."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(one), len(other)))


def tie_limit(*, row_invariant: bool, temperature: float) -> float:
    """Return the lead that rounding may overturn: none where rows are invariant."""
    return 0.0 if row_invariant else TIE / (temperature or 1.0)


async def compare(
    asker: Asker, plain: Sequence[Answer], others: Sequence[Answer], limit: float
) -> Compared:
    """Compare the outputs of one way with those of the target alone, request by request."""
    found = []
    for one, other in zip(plain, others, strict=True):
        if one.token_ids == other.token_ids:
            continue
        at = first_difference(one.token_ids, other.token_ids)
        margin = await asker.margin(one.ask, one.token_ids[:at])
        name, number = other.ask.way.name, other.ask.prompt.number
        found.append(Difference(name, number, at, margin, margin < limit))
    way = others[0].ask.way
    num_drafted = sum(answer.receipt.num_draft_tokens for answer in others)
    return Compared(
        way=way.name,
        num_outputs=len(others),
        num_tokens=sum(len(answer.token_ids) for answer in others),
        num_draft_tokens=num_drafted,
        is_vacuous=way.must_draft and num_drafted == 0,
        differences=tuple(found),
    )


async def gaps(answers: Sequence[Answer], reference: Reference, known: dict[Text, Floats]) -> Gaps:
    """Let the reference read greedy outputs; ``known`` keeps what it said of each text."""
    leads = []
    for answer in answers:
        text = answer.ask.prompt.token_ids, answer.token_ids
        if text not in known:
            known[text] = (await reference.read(*text, Law())).lead
        leads.append(known[text])
    every = np.concatenate(leads)
    return Gaps(answers[0].ask.way.name, len(every), int((every > 0).sum()), float(every.max()))


def equality_view(
    name: str,
    title: str,
    compared: Sequence[Compared],
    *,
    limit: float,
    confidence: float,
    seen: Sequence[Gaps] = (),
    max_gap: float = 0.0,
) -> View:
    """Judge whether all ways gave what the target alone gave."""
    differing = [each for some in compared for each in some.differences]
    real = [each for each in differing if not each.is_tie]
    wide = [each for each in seen if each.largest > max_gap]
    vacuous = [each.way for each in compared if each.is_vacuous]
    verdict = verdict_of(not real and not wide)
    if verdict is Verdict.PASS and vacuous:
        verdict = Verdict.NOT_RUN
    return View(
        name=name,
        title=title,
        verdict=verdict,
        tolerance=_tolerance(limit, max_gap if seen else None),
        finding=_finding(compared, real, wide, vacuous),
        tables=_tables(compared, differing, seen, confidence),
        data={
            "tie_limit": limit,
            "ways": [asdict(each) for each in compared],
            "reference_gaps": [asdict(each) for each in seen],
        },
    )


def _tolerance(limit: float, max_gap: float | None) -> str:
    told = "no difference at all, for the verifier's rows do not depend on the pass"
    if limit:
        told = f"no difference where the target's own decision leads by {limit:.2g} or more"
    if max_gap is not None:
        told += f"; no token that the reference finds {max_gap:.2g} logits below its favourite"
    return told


def _finding(
    compared: Sequence[Compared],
    real: Sequence[Difference],
    wide: Sequence[Gaps],
    vacuous: Sequence[str],
) -> str:
    if real:
        first = real[0]
        return (
            f"{len(real)} outputs differ from the target's own beyond ties; the first, with "
            f"{first.way} on prompt {first.prompt}, at output token {first.position}, which the "
            f"target decides by {first.margin:.3g}"
        )
    if wide:
        worst = max(wide, key=lambda each: each.largest)
        return f"{worst.way} says what the reference finds {worst.largest:.2f} logits too low"
    if vacuous:
        return f"nothing was drafted by {', '.join(vacuous)}, so nothing was tested"
    num_ties = sum(len(each.differences) for each in compared)
    num = sum(each.num_outputs for each in compared)
    drafted = sum(each.num_draft_tokens for each in compared)
    ties = f", but for {num_ties} ties" if num_ties else ""
    return f"{num} outputs equal the target's own{ties}; {drafted:,} draft tokens were verified"


def _tables(
    compared: Sequence[Compared],
    differing: Sequence[Difference],
    seen: Sequence[Gaps],
    confidence: float,
) -> list[Table]:
    rows = [
        (
            each.way,
            str(each.num_outputs),
            share(each.num_outputs - len(each.differences), each.num_outputs, confidence).told(),
            f"{each.num_tokens:,}",
            f"{each.num_draft_tokens:,}",
        )
        for each in compared
    ]
    tables = [Table(("way", "outputs", "share equal", "tokens", "draft tokens verified"), rows)]
    if differing:
        places = [
            (
                each.way,
                str(each.prompt),
                str(each.position),
                f"{each.margin:.4g}",
                "tie" if each.is_tie else "difference",
            )
            for each in differing[:MAX_LISTED]
        ]
        tables.append(Table(("way", "prompt", "output token", "margin", "judged"), places))
    if seen:
        read = [
            (each.way, f"{each.num_tokens:,}", str(each.num_other), f"{each.largest:.3f}")
            for each in seen
        ]
        tables.append(
            Table(("way", "tokens", "reference prefers another", "by at most, logits"), read)
        )
    return tables
