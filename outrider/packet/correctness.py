"""Correctness: what was checked, what was tolerated, what was found."""

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from outrider.errors import InvalidField
from outrider.receipts import disagreements
from outrider.sampling import AcceptanceRule
from outrider.v1 import generation_pb2 as pb

if TYPE_CHECKING:
    from outrider.walkthrough import Comparison

PASS, FAIL, NOT_RUN = "pass", "fail", "not run"
NUM_FIXTURE_RUNS = 10_000
FIXTURE_RULES = (AcceptanceRule.REJECTION, AcceptanceRule.BLOCK)
MAX_NAMED = 3


@dataclass(frozen=True, slots=True)
class Evidence:
    """One thing that was checked; ``kind`` says by what."""

    kind: str
    name: str
    verdict: str
    tolerance: str
    finding: str


def verdict_of(evidence: Iterable[Evidence]) -> str:
    """FAIL if anything failed, else NOT_RUN if anything could not be run, else PASS."""
    found = {each.verdict for each in evidence}
    for each in (FAIL, NOT_RUN):
        if each in found:
            return each
    return PASS if found else NOT_RUN


def fixture_runs(
    num_runs: int = NUM_FIXTURE_RUNS,
) -> "dict[AcceptanceRule, Comparison]":
    """Run the table that can be followed by hand, under each rule with draft probabilities.

    Raises: ImportError where torch is not installed.
    """
    from outrider.walkthrough import compare

    return {rule: compare(num_runs, rule) for rule in FIXTURE_RULES}


def of_fixture(rule: AcceptanceRule, found: "Comparison") -> Evidence:
    """Return what the table's frequencies say."""
    exact = found.exact
    worst = max(abs(found.speculative - exact).max(), abs(found.target_only - exact).max())
    return Evidence(
        kind="fixture",
        name=f"probabilities of a table of four draft tokens, rule {rule.value}",
        verdict=PASS if found.agrees else FAIL,
        tolerance="5 standard errors of every probability, and of both runs' difference",
        finding=f"{found.num_runs} runs with drafts and as many without, {exact.size} "
        f"probabilities; the largest deviation from the exact one is {worst:.4f}",
    )


def of_law_tests(path: Path) -> list[Evidence]:
    """Return what pytest wrote with ``--junitxml``, a line for each file of tests.

    Raises: InvalidField naming the file if it is something else; OSError.
    """
    try:
        root = ElementTree.parse(path).getroot()
    except ElementTree.ParseError as error:
        raise InvalidField("--law", f"{path} is no JUnit XML: {error}") from error
    by_file: dict[str, list[ElementTree.Element]] = defaultdict(list)
    for case in root.iter("testcase"):
        by_file[case.get("classname", "")].append(case)
    if not by_file:
        raise InvalidField("--law", f"{path} has no test cases")
    return [_of_cases(name, cases) for name, cases in by_file.items()]


def _of_cases(name: str, cases: Sequence[ElementTree.Element]) -> Evidence:
    failed = [case for case in cases if _has(case, "failure") or _has(case, "error")]
    num_skipped = sum(_has(case, "skipped") for case in cases)
    seconds = sum(float(case.get("time", 0)) for case in cases)
    finding = f"{len(cases) - len(failed) - num_skipped} of {len(cases)} passed, {seconds:.0f} s"
    if num_skipped:
        finding += f", {num_skipped} skipped"
    if failed:
        named = ", ".join(case.get("name", "") for case in failed[:MAX_NAMED])
        finding += f"; failed: {named}" + (", ..." if len(failed) > MAX_NAMED else "")
    verdict = NOT_RUN if num_skipped == len(cases) else PASS
    return Evidence(
        kind="law tests",
        name=name.rpartition(".")[2].removeprefix("test_").replace("_", " "),
        verdict=FAIL if failed else verdict,
        tolerance="as each test states it: seed, draws, alpha; wrong samplers must fail",
        finding=finding,
    )


def _has(case: ElementTree.Element, tag: str) -> bool:
    return case.find(tag) is not None


def of_audit(path: Path) -> list[Evidence]:
    """Return the views of an audit's ``audit.json``.

    Raises: InvalidField naming the file if it is something else; OSError.
    """
    told = read_json(path, "--audit")
    views: Any = told.get("views")
    if not isinstance(views, dict) or not views:
        raise InvalidField("--audit", f"{path} has no views")
    try:
        return [
            Evidence("audit", view["title"], view["verdict"], view["tolerance"], view["finding"])
            for view in views.values()
        ]
    except (KeyError, TypeError) as error:
        raise InvalidField("--audit", f"{path}: a view lacks {error}") from error


def of_receipts(receipts: Sequence[pb.Receipt]) -> Evidence:
    """Return whether every receipt's decision and counts follow from the receipt itself."""
    wrong = {each.request_id: found for each in receipts if (found := disagreements(each))}
    finding = f"{len(receipts) - len(wrong)} of {len(receipts)} receipts agree"
    for request_id, found in list(wrong.items())[:MAX_NAMED]:
        finding += f"; {request_id}: {found[0]}"
    return Evidence(
        kind="receipts",
        name="decisions and counts, worked out again from each receipt",
        verdict=FAIL if wrong else PASS,
        tolerance="none",
        finding=finding,
    )


def read_json(path: Path, flag: str) -> dict[str, Any]:
    """Return an object; Raises: InvalidField naming the flag and the file; OSError."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InvalidField(flag, f"{path} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise InvalidField(flag, f"{path} is no JSON object")
    return found
