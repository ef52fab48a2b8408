"""``outrider report``: the release packet, from receipts and what else speaks for a release."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from outrider.cli.render import plain_console
from outrider.errors import InvalidField
from outrider.packet.correctness import (
    FAIL,
    NOT_RUN,
    Evidence,
    fixture_runs,
    of_audit,
    of_fixture,
    of_law_tests,
    of_receipts,
    read_json,
)
from outrider.packet.finished import finished
from outrider.packet.packet import Packet
from outrider.receipts import read_receipts
from outrider.sampling import AcceptanceRule
from outrider.v1 import generation_pb2 as pb

if TYPE_CHECKING:
    from outrider.walkthrough import Comparison

FIXTURE = "probabilities of a table of four draft tokens"
OK, FAILED = 0, 1  # exit statuses


@dataclass(frozen=True, slots=True)
class ReportOptions:
    """What the flags say."""

    receipts: tuple[Path, ...]
    baseline: tuple[Path, ...]
    audits: tuple[Path, ...]
    law: tuple[Path, ...]
    load: Path | None
    out: Path
    fixture: bool


def run_report(options: ReportOptions) -> int:
    """Write the packet, print the three verdicts, return 1 if one of them is a failure.

    Raises: InvalidField naming a flag whose file cannot be used; OSError.
    """
    # Imported late: drawing needs packages that nothing else here does.
    try:
        from outrider.packet.page import write_packet
    except ImportError as error:
        raise InvalidField("report", f"{error}; install outrider[report]") from error

    console = plain_console()
    packet = _packet(options)
    page = write_packet(packet, options.out)
    views = {
        "correctness": packet.correctness,
        "eligibility": packet.eligibility,
        "operational value": packet.value,
    }
    for name, (verdict, why) in views.items():
        console.print(f"{name}: {verdict}: {why}", soft_wrap=True)
    console.print(f"written to {page}", soft_wrap=True)
    return FAILED if FAIL in {verdict for verdict, _ in views.values()} else OK


def _packet(options: ReportOptions) -> Packet:
    receipts = _read(options.receipts, "--receipts")
    requests = finished(receipts)
    if not requests:
        raise InvalidField("--receipts", "no request in them was completed")
    fixture: dict[AcceptanceRule, Comparison] = {}
    evidence: list[Evidence] = []
    if options.fixture:
        try:
            fixture = fixture_runs()
            evidence = [of_fixture(rule, found) for rule, found in fixture.items()]
        except ImportError as error:
            evidence.append(Evidence("fixture", FIXTURE, NOT_RUN, "", str(error)))
    for path in options.law:
        evidence += of_law_tests(path)
    for path in options.audits:
        evidence += of_audit(path)
    for flag, kind, given in (
        ("--law", "law tests", options.law),
        ("--audit", "audit", options.audits),
    ):
        if not given:
            evidence.append(Evidence(kind, kind, NOT_RUN, "", f"{flag} names no results"))
    facts, load = _load(options.load)
    return Packet(
        receipts=receipts,
        requests=requests,
        evidence=[*evidence, of_receipts(receipts)],
        baseline=finished(_read(options.baseline, "--baseline")),
        load=load,
        facts=facts | _about(receipts),
        fixture=fixture,
    )


def _read(paths: tuple[Path, ...], flag: str) -> list[pb.Receipt]:
    found: list[pb.Receipt] = []
    for path in paths:
        broken: list[int] = []
        found += read_receipts(path, broken)
        if broken:
            raise InvalidField(flag, f"{path}:{broken[0]} is no receipt")
    return found


def _load(path: Path | None) -> tuple[dict[str, str], list[Evidence]]:
    """Return what a load generator says about its run, and what it checked."""
    if path is None:
        return {}, []
    told = read_json(path, "--load")
    try:
        facts = {str(name): str(fact) for name, fact in told["facts"].items()}
        return facts, [Evidence(**each) for each in told["checks"]]
    except (KeyError, TypeError, AttributeError) as error:
        raise InvalidField(
            "--load", f"{path} is not what a load generator wrote: {error}"
        ) from None


def _about(receipts: list[pb.Receipt]) -> dict[str, str]:
    """Return what receipts say of the run itself."""
    targets = {f"{each.target.name} {each.target.revision}".strip() for each in receipts}
    drafters = {
        f"{each.drafter.name} {each.drafter.revision}".strip()
        for each in receipts
        if each.HasField("drafter")
    }
    policies = {f"{each.policy.version} ({each.policy.digest})" for each in receipts}
    return {
        "target": ", ".join(sorted(targets - {""})) or "none",
        "drafters": ", ".join(sorted(drafters - {""})) or "none",
        "policy": ", ".join(sorted(policies)),
    }
