"""Requests that came to their end, as the packet counts them."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from outrider.receipts import FINISHED
from outrider.v1 import generation_pb2 as pb

REQUESTED = "target_only_requested"
"""The decision about requests that ask for target-only themselves: the control."""

OUTPUT_BANDS = (16, 64, 256)  # upper ends, in tokens


@dataclass(frozen=True, slots=True)
class Finished:
    """One choice that ended by itself. Times in milliseconds.

    What is later is behind the first token: the prompt takes the same with drafts or without.
    """

    receipt: pb.Receipt

    @property
    def class_name(self) -> str:
        """The workload class that the policy found."""
        return self.receipt.policy.workload_class

    @property
    def decision(self) -> str:
        """What the policy decided, without what is told behind it."""
        return self.receipt.decision.partition(";")[0]

    @property
    def is_control(self) -> bool:
        """True where the request itself asked for target-only."""
        return self.decision == REQUESTED

    @property
    def num_later_tokens(self) -> int:
        """Output tokens behind the first."""
        return max(self.receipt.num_output_tokens - 1, 0)

    @property
    def num_later_cycles(self) -> int:
        """Cycles behind the one that read the prompt."""
        return max(self.receipt.num_cycles - 1, 0)

    @property
    def later_ms(self) -> float:
        """From the first tokens to the end."""
        return max(float(self.receipt.total_ms - self.receipt.ttft_ms), 0.0)

    @property
    def later_verify_ms(self) -> float:
        """At the verifier meanwhile."""
        return max(float(self.receipt.verify_ms - self.receipt.prefill_ms), 0.0)

    @property
    def per_token_ms(self) -> float | None:
        """Of a later token; None without any."""
        return self.later_ms / self.num_later_tokens if self.num_later_tokens else None

    @property
    def traits(self) -> dict[str, str]:
        """What tells kinds of requests apart, in words."""
        seen, receipt = self.receipt.traits, self.receipt
        return {
            **{name: seen.metadata[name] for name in sorted(seen.metadata)},
            "output tokens": band(receipt.num_output_tokens),
            "temperature": "greedy" if seen.greedy else f"{seen.temperature:.2g}",
            "features": ", ".join(seen.features) or "none",
            "priority": f"{seen.priority}",
        }


@dataclass(frozen=True, slots=True)
class Groups:
    """Requests whose drafts the policy decided about, and those that were kept target-only to
    compare with."""

    decided: tuple[Finished, ...]
    control: tuple[Finished, ...]

    @classmethod
    def of(cls, requests: Iterable[Finished]) -> "Groups":
        """Tell them apart."""
        given = tuple(requests)
        return cls(
            tuple(each for each in given if not each.is_control),
            tuple(each for each in given if each.is_control),
        )


def finished(receipts: Iterable[pb.Receipt]) -> list[Finished]:
    """Return those that ended with a stop or at their length, in the order of their arrival."""
    ended = [Finished(each) for each in receipts if each.outcome in FINISHED]
    return sorted(ended, key=lambda each: each.receipt.arrived_at_s)


def by_class(requests: Sequence[Finished]) -> dict[str, Groups]:
    """Return the requests of each class, by name."""
    names = sorted({each.class_name for each in requests})
    return {name: Groups.of(each for each in requests if each.class_name == name) for name in names}


def band(num_tokens: int) -> str:
    """Return the band of output lengths that a number is in."""
    lower = 1
    for upper in OUTPUT_BANDS:
        if num_tokens <= upper:
            return f"{lower} to {upper}"
        lower = upper + 1
    return f"{lower} or more"
