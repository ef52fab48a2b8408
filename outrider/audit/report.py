"""An audit on paper: a page, the figures behind it, and charts."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from outrider.audit.plan import Plan
from outrider.audit.view import Table, Verdict, View

PAGE, FIGURES, CHART = "audit.md", "audit.json", "audit.png"
MARKS = {Verdict.PASS: "pass", Verdict.FAIL: "**FAIL**", Verdict.NOT_RUN: "not run"}


@dataclass(frozen=True, slots=True)
class Audited:
    """What was audited, how, and what came of it; ``facts`` are in words."""

    facts: Mapping[str, str]
    plan: Plan
    views: Sequence[View]
    identities: Mapping[str, Any]

    @property
    def verdict(self) -> Verdict:
        """FAIL if a view failed, else NOT_RUN if one could not be made, else PASS."""
        found = {view.verdict for view in self.views}
        for each in (Verdict.FAIL, Verdict.NOT_RUN):
            if each in found:
                return each
        return Verdict.PASS if found else Verdict.NOT_RUN


def write_report(audited: Audited, folder: Path) -> None:
    """Write page, figures and chart into a folder.

    Raises: OSError.
    """
    # Imported late: only a finished audit draws.
    from outrider.audit.chart import draw

    folder.mkdir(parents=True, exist_ok=True)
    (folder / FIGURES).write_text(json.dumps(_finite(_json(audited)), indent=1) + "\n")
    (folder / PAGE).write_text(page(audited))
    draw(audited.views, folder / CHART)


def page(audited: Audited) -> str:
    """Return the report in Markdown."""
    lines = [f"# Audit: {audited.verdict.value}", ""]
    lines += [f"- {name}: {fact}" for name, fact in audited.facts.items()]
    summary = [
        (view.title.partition(":")[0], MARKS[view.verdict], view.finding) for view in audited.views
    ]
    lines += ["", *_table(Table(("view", "verdict", "finding"), summary))]
    lines += [f"![Charts]({CHART})", ""]
    for view in audited.views:
        lines += [f"## {view.title}", "", f"{MARKS[view.verdict]}: {view.finding}.", ""]
        lines += [f"Tolerated: {view.tolerance}.", ""]
        for table in view.tables:
            lines += _table(table)
    return "\n".join(lines)


def _table(table: Table) -> list[str]:
    lines = [table.headers, ["---"] * len(table.headers), *table.rows]
    return [*(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines), ""]


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _json(audited: Audited) -> dict[str, Any]:
    plan = asdict(audited.plan)
    plan["skipped"] = sorted(audited.plan.skipped)
    return {
        "verdict": audited.verdict.value,
        "facts": dict(audited.facts),
        "identities": dict(audited.identities),
        "plan": plan,
        "views": {
            view.name: {
                "title": view.title,
                "verdict": view.verdict.value,
                "tolerance": view.tolerance,
                "finding": view.finding,
                "figures": view.data,
            }
            for view in audited.views
        },
    }


def _finite(value: Any) -> Any:
    """Return the value with null in place of what JSON cannot hold."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(each) for each in value]
    return value
