"""Eligibility: for which kinds of requests the policy lets drafts work, and what they gained."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from outrider.packet.finished import Finished, Groups, by_class
from outrider.packet.gains import Gain, Saving, gain, pace, saving


@dataclass(frozen=True, slots=True)
class Worth:
    """What was decided about some requests, and what came of it.

    ``decisions`` and ``sources`` count requests and verified drafts; ``draft_share`` is the share
    of cycles behind the prompt that verified a draft.
    """

    num_decided: int
    num_control: int
    decisions: Mapping[str, int]
    sources: Mapping[str, int]
    draft_share: float
    acceptance_rate: float
    mean_acceptance_length: float
    num_passes_saved: int
    gain: Gain | None
    saving: Saving | None

    @property
    def verdict(self) -> str:
        """What can be said of the gain."""
        return "too few to compare" if self.gain is None else self.gain.verdict


@dataclass(frozen=True, slots=True)
class Cell:
    """The requests of a class that have one value of a trait."""

    class_name: str
    trait: str
    value: str
    worth: Worth


def worth(groups: Groups) -> Worth:
    """Return what drafts were worth to a group."""
    receipts = [each.receipt for each in groups.decided]
    sources: Counter[str] = Counter()
    for receipt in receipts:
        sources.update(receipt.drafts_by_source)
    num_drafts = sum(receipt.num_spec_steps for receipt in receipts)
    num_tokens = sum(receipt.num_draft_tokens for receipt in receipts)
    num_accepted = sum(receipt.num_accepted_draft_tokens for receipt in receipts)
    num_cycles = sum(each.num_later_cycles for each in groups.decided)
    found, alone = gain(groups), pace(groups.control)
    return Worth(
        num_decided=len(receipts),
        num_control=len(groups.control),
        decisions=Counter(each.decision for each in groups.decided),
        sources=sources,
        draft_share=num_drafts / max(num_cycles, 1),
        acceptance_rate=num_accepted / max(num_tokens, 1),
        mean_acceptance_length=1 + num_accepted / max(num_drafts, 1),
        num_passes_saved=sum(receipt.num_passes_saved for receipt in receipts),
        gain=found,
        saving=None if found is None or alone is None else saving(groups.decided, alone),
    )


def worth_by_class(requests: Sequence[Finished]) -> dict[str, Worth]:
    """Return what drafts were worth to each class."""
    return {name: worth(groups) for name, groups in by_class(requests).items()}


def cells(requests: Sequence[Finished]) -> list[Cell]:
    """Return the matrix: every class by every trait that tells requests apart."""
    found = []
    for trait, tells in telling(requests).items():
        if not tells:
            continue
        for value in sorted({each.traits.get(trait, "") for each in requests}, key=_natural):
            some = [each for each in requests if each.traits.get(trait, "") == value]
            found += [
                Cell(name, trait, value or "not given", worth(groups))
                for name, groups in by_class(some).items()
            ]
    return found


def telling(requests: Iterable[Finished]) -> dict[str, bool]:
    """Return all traits, in the order in which requests tell them, and whether they take more than
    one value; what is but another name of the class is left out."""
    values: dict[str, set[str]] = defaultdict(set)
    repeats: dict[str, bool] = defaultdict(lambda: True)
    for each in requests:
        for trait, value in each.traits.items():
            values[trait].add(value)
            repeats[trait] &= value == each.class_name
    return {trait: len(found) > 1 for trait, found in values.items() if not repeats[trait]}


def _natural(value: str) -> tuple[float, str]:
    """Order bands and numbers as one reads them."""
    first = value.split(" ", 1)[0]
    try:
        return float(first), value
    except ValueError:
        return float("-inf"), value
