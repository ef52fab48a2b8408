"""Whether enough draft tokens of a source are accepted in a class of requests."""

from dataclasses import dataclass, field

from orchestrator.estimates import Average
from orchestrator.off_switch import OffSwitch
from outrider.policy import MinAgreement


@dataclass(slots=True)
class Agreement:
    """Of one source, in one class, for one target; what all its requests together have seen.

    The switch is the one that also turns off what does not pay, with its patience and its probes.
    """

    limits: MinAgreement
    accepted: Average = field(default_factory=Average)
    drafted: Average = field(default_factory=Average)
    switch: OffSwitch = field(default_factory=OffSwitch)

    @property
    def rate(self) -> float:
        """Accepted over verified draft tokens, as averages that forget; 1 before the first."""
        return self.accepted.value / self.drafted.value if self.drafted.count else 1.0

    def observe(self, num_accepted: int, num_drafted: int) -> None:
        """Learn from a verified draft."""
        self.accepted.observe(num_accepted)
        self.drafted.observe(num_drafted)

    def judge(self) -> None:
        """Let the switch see the present rate."""
        least = self.limits.resume_rate if self.switch.is_off else self.limits.rate
        self.switch.note(self.rate, least)

    def refresh(self) -> None:
        """Let the next drafts count for more than the old ones."""
        self.accepted.refresh()
        self.drafted.refresh()


@dataclass(slots=True)
class Agreements:
    """Those of all classes, kept for as long as the process lives; keyed by ``Target.key``, class
    and source."""

    _known: dict[tuple[str, str, str], Agreement] = field(default_factory=dict)

    def of(
        self, target: str, class_name: str, source: str, limits: MinAgreement | None
    ) -> Agreement | None:
        """Return what is known of a source in a class; None where the class has no limits.

        A policy that was read again changes the limits and keeps what was seen.
        """
        if limits is None:
            return None
        known = self._known.setdefault((target, class_name, source), Agreement(limits))
        known.limits = limits
        return known
