"""The three views of a release, put together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from outrider.packet.correctness import FAIL, NOT_RUN, PASS, Evidence, verdict_of
from outrider.packet.finished import Finished, Groups, by_class
from outrider.packet.gains import Saving
from outrider.packet.latency import Line, lines
from outrider.packet.matrix import Cell, Worth, cells, telling, worth_by_class
from outrider.policy import ON
from outrider.sampling import AcceptanceRule
from outrider.v1 import generation_pb2 as pb

if TYPE_CHECKING:
    from outrider.walkthrough import Comparison

MIN_DRAFT_SHARE = 0.1  # of cycles with a draft, below which a class only explores


@dataclass(frozen=True)
class Packet:
    """Everything that the page shows.

    ``baseline`` are requests of a run in which all were target-only; ``facts`` say in words what
    was run; ``load`` is what the load generator checked.
    """

    receipts: Sequence[pb.Receipt]
    requests: Sequence[Finished]
    evidence: Sequence[Evidence]
    baseline: Sequence[Finished] = ()
    load: Sequence[Evidence] = ()
    facts: Mapping[str, str] = field(default_factory=dict)
    fixture: "Mapping[AcceptanceRule, Comparison]" = field(default_factory=dict)

    @cached_property
    def groups(self) -> dict[str, Groups]:
        """Requests by class."""
        return by_class(self.requests)

    @cached_property
    def baseline_groups(self) -> dict[str, Groups]:
        """The same of the run without drafts."""
        return by_class(self.baseline)

    @cached_property
    def classes(self) -> dict[str, Worth]:
        """What drafts were worth to each class."""
        return worth_by_class(self.requests)

    @cached_property
    def matrix(self) -> list[Cell]:
        """The same by every trait."""
        return cells(self.requests)

    @cached_property
    def alike(self) -> dict[str, str]:
        """Traits that all requests have alike, which is why the matrix does not have them."""
        first = self.requests[0].traits
        return {trait: first[trait] for trait, tells in telling(self.requests).items() if not tells}

    @cached_property
    def latency(self) -> list[Line]:
        """Quantiles by class."""
        return lines(self.groups, self.baseline_groups)

    @property
    def enabled(self) -> list[str]:
        """Classes for which drafts were at work."""
        return [name for name, each in self.classes.items() if is_enabled(each)]

    @property
    def total(self) -> Saving:
        """All classes together."""
        found = [each.saving for each in self.classes.values() if each.saving is not None]
        return Saving(
            alone_ms=sum(each.alone_ms for each in found),
            saved_ms=sum(each.saved_ms for each in found),
            verify_ms=sum(each.verify_ms for each in found),
            draft_ms=sum(each.draft_ms for each in found),
            scheduling_ms=sum(each.scheduling_ms for each in found),
        )

    @property
    def correctness(self) -> tuple[str, str]:
        """The first view's verdict, and why."""
        verdict = verdict_of(self.evidence)
        wrong = [each for each in self.evidence if each.verdict == FAIL]
        if wrong:
            return verdict, f"{len(wrong)} failed: {', '.join(each.name for each in wrong)}"
        missing = [each.name for each in self.evidence if each.verdict == NOT_RUN]
        num_passed = sum(each.verdict == PASS for each in self.evidence)
        told = f"{num_passed} of {len(self.evidence)} checks passed, none failed"
        return verdict, told + (f"; not run: {', '.join(missing)}" if missing else "")

    @property
    def eligibility(self) -> tuple[str, str]:
        """The second view's verdict, and why: every class with drafts must be seen to gain."""
        enabled = {name: self.classes[name].verdict for name in self.enabled}
        if not enabled:
            return NOT_RUN, "no class had drafts at work"
        others = [name for name in self.classes if name not in enabled]
        told = ", ".join(f"{name} {verdict}" for name, verdict in enabled.items())
        told += f"; without drafts: {', '.join(others)}" if others else ""
        if "loses" in enabled.values():
            return FAIL, told
        return (PASS if set(enabled.values()) == {"gains"} else NOT_RUN), told

    @property
    def value(self) -> tuple[str, str]:
        """The third view's verdict, and why."""
        total = self.total
        if not total.alone_ms:
            return NOT_RUN, "there is no control to compare with"
        told = (
            f"{total.net_ms / 1e3:.1f} s of {total.alone_ms / 1e3:.1f} s saved net, "
            f"{total.net_share:.1%}"
        )
        wrong = [each.name for each in self.load if each.verdict == FAIL]
        if wrong:
            return FAIL, f"{told}; failed: {', '.join(wrong)}"
        return (PASS if total.net_ms > 0 else FAIL), told


def is_enabled(worth: Worth) -> bool:
    """True where the policy let drafts work, and they did more than explore."""
    return bool(worth.decisions.get(ON)) and worth.draft_share >= MIN_DRAFT_SHARE


def as_json(packet: Packet) -> dict[str, Any]:
    """Return the figures behind the page."""
    return {
        "facts": dict(packet.facts),
        "num_requests": len(packet.requests),
        "num_receipts": len(packet.receipts),
        "correctness": {
            "verdict": packet.correctness[0],
            "evidence": [_evidence(each) for each in packet.evidence],
        },
        "eligibility": {
            "verdict": packet.eligibility[0],
            "enabled": packet.enabled,
            "classes": {name: worth_json(each) for name, each in packet.classes.items()},
        },
        "value": {
            "verdict": packet.value[0],
            "total": _saving(packet.total),
            "checks": [_evidence(each) for each in packet.load],
        },
    }


def worth_json(worth: Worth) -> dict[str, Any]:
    """Return what drafts were worth, as JSON holds it."""
    gain = worth.gain
    return {
        "num_decided": worth.num_decided,
        "num_control": worth.num_control,
        "decisions": dict(worth.decisions),
        "drafts_by_source": dict(worth.sources),
        "draft_share": worth.draft_share,
        "draft_acceptance_rate": worth.acceptance_rate,
        "mean_acceptance_length": worth.mean_acceptance_length,
        "num_passes_saved": worth.num_passes_saved,
        "gain": gain and {"value": gain.value, "low": gain.low, "high": gain.high},
        "verdict": worth.verdict,
        "saving": worth.saving and _saving(worth.saving),
    }


def _saving(saving: Saving) -> dict[str, float]:
    return {
        "target_only_ms": saving.alone_ms,
        "saved_ms": saving.saved_ms,
        "verify_ms": saving.verify_ms,
        "draft_ms": saving.draft_ms,
        "scheduling_ms": saving.scheduling_ms,
        "net_ms": saving.net_ms,
        "net_share": saving.net_share,
    }


def _evidence(each: Evidence) -> dict[str, str]:
    return {
        "kind": each.kind,
        "name": each.name,
        "verdict": each.verdict,
        "tolerance": each.tolerance,
        "finding": each.finding,
    }
