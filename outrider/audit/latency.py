"""How long first and later tokens take, with speculation and without."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from outrider.audit.asking import Answer
from outrider.audit.intervals import Interval, bootstrap
from outrider.audit.plan import POLICY, TARGET_ONLY, Tolerances
from outrider.audit.view import Table, View, verdict_of

NAME, TITLE = "latency", "Latency: first and later tokens, one request at a time"
QUANTILES = (0.5, 0.9, 0.99)

Floats = npt.NDArray[np.float64]


def first_ms(answers: Sequence[Answer]) -> Floats:
    """Return the milliseconds to the first token."""
    return np.array([answer.first_ms for answer in answers])


def per_token_ms(answers: Sequence[Answer]) -> Floats:
    """Return the mean milliseconds of a later token, of every answer that has some; nan else."""
    return np.array([answer.per_token_ms or np.nan for answer in answers])


def slowdown(
    plain: Sequence[Answer], others: Sequence[Answer], confidence: float, seed: int
) -> Interval:
    """Return the median time of a later token over that of the target alone, by request."""
    ratios = per_token_ms(others) / per_token_ms(plain)
    ratios = ratios[np.isfinite(ratios)]
    if not len(ratios):
        return Interval(1.0, 0.0, np.inf)
    return bootstrap(ratios, np.median, confidence, seed)


def latency_view(
    answers: Mapping[str, Sequence[Answer]], tolerances: Tolerances, seed: int
) -> View:
    """Judge what the policy's own choice costs; forced drafts are shown beside it."""
    plain = answers[TARGET_ONLY.name]
    ratios = {
        way: slowdown(plain, some, tolerances.confidence, seed)
        for way, some in answers.items()
        if way != TARGET_ONLY.name
    }
    judged = ratios[POLICY.name]
    passes = judged.low <= 1 + tolerances.max_slowdown
    return View(
        name=NAME,
        title=TITLE,
        verdict=verdict_of(passes),
        tolerance=(
            "under the policy a later token is not shown to take more than "
            f"{1 + tolerances.max_slowdown:.2f} times as long as with the target alone (lower end "
            f"of the {tolerances.confidence:.0%} interval)"
        ),
        finding=(
            f"under the policy a later token takes {judged.told('.2f')} times as long as with the "
            "target alone"
        ),
        tables=[_table(answers, ratios)],
        data={
            way: {
                "ttft_ms": _quantiles(first_ms(some)),
                "tpot_ms": _quantiles(per_token_ms(some)),
                "tpot_ratio": ratios[way].as_json() if way in ratios else None,
                "ttft_ms_each": [round(value, 2) for value in first_ms(some).tolist()],
                "tpot_ms_each": [round(value, 2) for value in per_token_ms(some).tolist()],
            }
            for way, some in answers.items()
        },
    )


def _quantiles(values: Floats) -> dict[str, float]:
    return {f"p{round(100 * q)}": float(np.nanquantile(values, q)) for q in QUANTILES}


def _table(answers: Mapping[str, Sequence[Answer]], ratios: Mapping[str, Interval]) -> Table:
    def told(values: Floats) -> str:
        return " / ".join(f"{each:.1f}" for each in _quantiles(values).values())

    headers = (
        "way",
        "requests",
        "TTFT ms, p50 / p90 / p99",
        "TPOT ms, p50 / p90 / p99",
        "TPOT ratio",
    )
    rows = [
        (
            way,
            str(len(some)),
            told(first_ms(some)),
            told(per_token_ms(some)),
            ratios[way].told(".2f") if way in ratios else "1",
        )
        for way, some in answers.items()
    ]
    return Table(headers, rows)
