"""Reads what a packet is made from."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from outrider.errors import InvalidField
from outrider.packet.correctness import (
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
from outrider.packet.inputs import Inputs
from outrider.packet.packet import Packet
from outrider.receipts import read_receipts
from outrider.sampling import AcceptanceRule
from outrider.v1 import common_pb2
from outrider.v1 import generation_pb2 as pb

if TYPE_CHECKING:
    from outrider.walkthrough import Comparison

FIXTURE = "probabilities of a table of four draft tokens"


def read_packet(inputs: Inputs) -> Packet:
    """Read and run everything.

    Raises: InvalidField naming a flag whose file cannot be used; OSError.
    """
    receipts = _receipts(inputs.receipts, "--receipts")
    requests = finished(receipts)
    if not requests:
        raise InvalidField("--receipts", "no request in them was completed")
    facts, load = _load(inputs.load)
    fixture, evidence = _fixture(inputs)
    for path in inputs.law:
        evidence += of_law_tests(path)
    for path in inputs.audits:
        evidence += of_audit(path)
    evidence += [
        _absent(kind, f"{flag} names no results")
        for flag, kind, given in (
            ("--law", "law tests", inputs.law),
            ("--audit", "audit", inputs.audits),
        )
        if not given
    ]
    return Packet(
        receipts=receipts,
        requests=requests,
        evidence=[*evidence, of_receipts(receipts)],
        baseline=finished(_receipts(inputs.baseline, "--baseline")),
        load=load,
        facts=facts | _about(receipts),
        fixture=fixture,
    )


def _receipts(paths: Sequence[Path], flag: str) -> list[pb.Receipt]:
    found: list[pb.Receipt] = []
    for path in paths:
        broken: list[int] = []
        found += read_receipts(path, broken)
        if broken:
            raise InvalidField(flag, f"{path}:{broken[0]} is no receipt")
    return found


def _fixture(inputs: Inputs) -> "tuple[dict[AcceptanceRule, Comparison], list[Evidence]]":
    if not inputs.fixture:
        return {}, [_absent("fixture", "left out (--no-fixture)")]
    try:
        found = fixture_runs()
    except ImportError as error:
        return {}, [_absent("fixture", str(error))]
    return found, [of_fixture(rule, each) for rule, each in found.items()]


def _absent(kind: str, why: str) -> Evidence:
    return Evidence(kind, FIXTURE if kind == "fixture" else kind, NOT_RUN, "", why)


def _load(path: Path | None) -> tuple[dict[str, str], list[Evidence]]:
    """Return what a load generator says about its run, and what it checked."""
    if path is None:
        return {}, []
    told = read_json(path, "--load")
    try:
        facts = {str(name): str(fact) for name, fact in told["facts"].items()}
        return facts, [Evidence(**each) for each in told["checks"]]
    except (KeyError, TypeError, AttributeError) as error:
        why = f"{path} is not what a load generator wrote: {error}"
        raise InvalidField("--load", why) from None


def _about(receipts: Sequence[pb.Receipt]) -> dict[str, str]:
    """Return what receipts say of the run itself."""
    drafters = [each.drafter for each in receipts if each.HasField("drafter")]
    policies = {f"{each.policy.version} ({each.policy.digest})" for each in receipts}
    return {
        "target": _names([each.target for each in receipts]),
        "drafters": _names(drafters),
        "policy": ", ".join(sorted(policies)),
    }


def _names(identities: Sequence[common_pb2.ModelIdentity]) -> str:
    found = {f"{each.name} {each.revision}".strip() for each in identities} - {""}
    return ", ".join(sorted(found)) or "none"
