"""Receipts as a log keeps them: read back, and what they say worked out again from themselves.

A receipt explains its request by itself: it holds what the policy saw, the part of the policy that
decided, and every count in more than one way.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from google.protobuf.json_format import MessageToJson, Parse, ParseError

from outrider.policy import (
    Decision,
    SpeculationOptions,
    Traits,
    decide,
    read_excerpt,
)
from outrider.v1 import generation_pb2 as pb

# Fallbacks that tell of a drafter's loss, not of a cycle without a draft.
LOSSES = frozenset(
    {"drafter_lost", "drafter_refused", "drafter_full", "drafter_suspect", "drafter_restarted"}
)
# Fallbacks of cycles that did have a draft; a part of an invalid one may have been used.
INVALID = frozenset({"invalid_draft", "no_room_for_draft", "probes_only"})
FINISHED = frozenset({"stop", "length"})
TOLERANCE = 1e-5  # of shares, which travel in single precision


def to_line(receipt: pb.Receipt) -> str:
    """Return a receipt as one line of JSON, fields at zero included."""
    return str(
        MessageToJson(
            receipt,
            indent=None,
            preserving_proto_field_name=True,
            always_print_fields_with_no_presence=True,
        )
    )


def from_line(line: str) -> pb.Receipt:
    """Read a line; fields that this version does not know are passed over.

    Raises: ValueError if it is none.
    """
    receipt = pb.Receipt()
    if not line.lstrip().startswith("{"):
        raise ValueError("no receipt: not an object")
    try:
        Parse(line, receipt, ignore_unknown_fields=True)
    except ParseError as error:
        raise ValueError(f"no receipt: {error}") from None
    return receipt


def read_receipts(path: Path, broken: list[int] | None = None) -> Iterator[pb.Receipt]:
    """Yield the receipts of a log, in the order in which the requests ended.

    Lines that are none, as a disk that was full leaves them, are passed over; their numbers, from
    1, are appended to ``broken``.

    Raises: OSError if the file cannot be read.
    """
    with path.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                yield from_line(line)
            except ValueError:
                if broken is not None:
                    broken.append(number)


def decision_of(receipt: pb.Receipt) -> Decision:
    """Decide again about the request of a receipt, from the receipt alone.

    Raises: OutriderError if the policy or the options in it are none; ValueError if the request was
        refused before there was a decision.
    """
    if not receipt.policy.excerpt_json:
        raise ValueError(f"there was no decision: {receipt.error}")
    return decide(
        read_excerpt(receipt.policy.excerpt_json),
        Traits.from_proto(receipt.traits),
        SpeculationOptions.from_proto(receipt.requested),
        receipt.request_id,
    )


@dataclass(frozen=True, slots=True)
class TimeSplit:
    """Where the time of a request went.

    Units: milliseconds. ``rest_ms`` is the orchestrator's own work, and waiting for the client.
    """

    queue_ms: float
    draft_ms: float
    verify_ms: float
    network_ms: float
    rest_ms: float

    @classmethod
    def of(cls, receipt: pb.Receipt) -> "TimeSplit":
        """Return that of a receipt."""
        parts = (receipt.queue_ms, receipt.draft_ms, receipt.verify_ms, receipt.network_ms)
        return cls(*parts, rest_ms=receipt.total_ms - sum(parts))


def disagreements(receipt: pb.Receipt) -> list[str]:
    """Return what in a receipt does not follow from the rest of it; nothing, if all is well."""
    found = _about_outcome(receipt)
    if receipt.policy.excerpt_json:
        found += _about_decision(receipt)
    if receipt.outcome == "refused":
        return found
    found += _about_counts(receipt)
    if receipt.HasField("shadow"):
        found += [f"shadow.{each}" for each in _about_shadow(receipt)]
    return found


def _about_outcome(receipt: pb.Receipt) -> list[str]:
    failed = receipt.outcome in ("error", "refused")
    known = failed or receipt.outcome in (*FINISHED, "cancelled")
    found = [] if known else [f"outcome: {receipt.outcome!r} is none"]
    if failed != bool(receipt.status_code):
        found.append(f"status_code: {receipt.status_code!r} of a request that {receipt.outcome}")
    return found


def _about_decision(receipt: pb.Receipt) -> list[str]:
    told, again = receipt.policy, decision_of(receipt)
    chosen = again.workload_class
    rule = "greedy" if receipt.traits.greedy else again.rule.value
    pairs: dict[str, tuple[object, object]] = {
        "decision": (receipt.decision.partition(";")[0], again.reason),
        "rule": (receipt.rule, rule),
        "policy.version": (told.version, again.policy.version),
        "policy.workload_class": (told.workload_class, again.class_name),
        "policy.class_index": (
            told.class_index if told.HasField("class_index") else None,
            again.class_index,
        ),
        "policy.speculation": (told.speculation, again.speculation.value),
        "policy.sources": (tuple(told.sources), again.sources),
        "policy.drafters": (tuple(told.drafters), chosen.drafters if chosen else ()),
        "policy.narrowed": (tuple(told.narrowed), again.narrowed),
    }
    return _differing(pairs)


def _about_counts(receipt: pb.Receipt) -> list[str]:
    speculated = receipt.policy.speculation == "on"
    found = _about_drafts(receipt)
    pairs: dict[str, tuple[object, object]] = {
        "num_passes_saved": (
            receipt.num_passes_saved,
            receipt.num_output_tokens - receipt.num_cycles,
        ),
        "draft_lengths": (
            sum(receipt.draft_lengths.histogram),
            sum(each.count for each in receipt.draft_lengths.reasons),
        ),
    }
    found += _differing(pairs)
    wasted = receipt.num_draft_tokens - receipt.num_accepted_draft_tokens
    if receipt.num_discarded_draft_tokens < wasted:
        found.append(f"num_discarded_draft_tokens: {receipt.num_discarded_draft_tokens} < {wasted}")
    if receipt.num_output_tokens < receipt.num_accepted_draft_tokens + receipt.num_spec_steps * (
        receipt.outcome not in FINISHED
    ):
        found.append("num_output_tokens: fewer than the accepted draft tokens")
    if receipt.num_target_passes < receipt.num_cycles:
        found.append(f"num_target_passes: fewer than {receipt.num_cycles} cycles")
    if not speculated and receipt.num_spec_steps:
        found.append(f"num_spec_steps: {receipt.num_spec_steps} without speculation")
    if speculated:
        slack = 0 if receipt.outcome in FINISHED else 1  # the cycle that broke off
        found += _about_cycles(receipt, receipt.num_cycles, slack)
    if TimeSplit.of(receipt).rest_ms < -TOLERANCE * receipt.total_ms - 1:
        found.append("total_ms: less than its parts")
    return found


def _about_shadow(receipt: pb.Receipt) -> list[str]:
    shadow = receipt.shadow
    found = _about_drafts(shadow)
    saved = shadow.num_covered_tokens - shadow.num_cycles
    found += _differing({"num_passes_saved": (shadow.num_passes_saved, saved)})
    found += _about_cycles(shadow, shadow.num_cycles, 1)
    if shadow.num_covered_tokens > receipt.num_output_tokens + (shadow.judged_by == "pass") * max(
        len(shadow.acceptance_histogram) - 1, 0
    ):
        found.append(f"num_covered_tokens: more than {receipt.num_output_tokens} there were")
    return found


def _about_drafts(counts: "pb.Receipt | pb.ShadowResults") -> list[str]:
    """Return what is wrong with the counts of drafts: each can be had from a histogram."""
    accepted = counts.acceptance_histogram
    num_steps, num_accepted = sum(accepted), _weighted(accepted)
    num_tokens = counts.num_draft_tokens
    pairs: dict[str, tuple[object, object]] = {
        "num_spec_steps": (counts.num_spec_steps, num_steps),
        "num_accepted_draft_tokens": (counts.num_accepted_draft_tokens, num_accepted),
        "drafts_by_source": (sum(counts.drafts_by_source.values()), num_steps),
        "draft_tokens_by_source": (sum(counts.draft_tokens_by_source.values()), num_tokens),
        "accepted_tokens_by_source": (
            sum(counts.accepted_tokens_by_source.values()),
            num_accepted,
        ),
    }
    if isinstance(counts, pb.Receipt):
        sizes = counts.draft_size_histogram
        pairs["draft_size_histogram"] = (sum(sizes), num_steps)
        pairs["num_draft_tokens"] = (num_tokens, _weighted(sizes))
    found = _differing(pairs)
    shares = {
        "draft_acceptance_rate": (
            counts.draft_acceptance_rate,
            num_accepted / num_tokens if num_tokens else 0.0,
        ),
        "mean_acceptance_length": (
            counts.mean_acceptance_length,
            1 + num_accepted / num_steps if num_steps else 1.0,
        ),
    }
    found += [
        f"{name}: {told:g}, not {again:g}"
        for name, (told, again) in shares.items()
        if abs(told - again) > TOLERANCE * max(again, 1)
    ]
    return found


def _about_cycles(
    counts: "pb.Receipt | pb.ShadowResults", num_cycles: int, slack: int
) -> list[str]:
    """Return what is wrong with the cycles: each had a draft, or a reason to have none.

    ``slack``: cycles that may have broken off behind their reason.
    """
    reasons = reason_counts(counts.fallbacks)
    num_without = sum(n for reason, n in reasons.items() if reason not in LOSSES | INVALID)
    num_invalid = sum(n for reason, n in reasons.items() if reason in INVALID)
    least = counts.num_spec_steps + num_without
    found = []
    if not least - slack <= num_cycles <= least + num_invalid:
        found.append(f"fallbacks: {least} cycles have a draft or a reason, of {num_cycles}")
    blocks = reason_counts(counts.draft_blocks)
    wanted = sum(blocks[result] for result in ("hit", "miss", "late"))
    if wanted > num_cycles + slack:
        found.append(f"draft_blocks: {wanted} cycles wanted a block, of {num_cycles}")
    return found


def reason_counts(counts: Iterable[pb.ReasonCount]) -> Counter[str]:
    """Return counts by reason."""
    return Counter({each.reason: each.count for each in counts})


def _weighted(histogram: Sequence[int]) -> int:
    return sum(number * count for number, count in enumerate(histogram))


def _differing(pairs: Mapping[str, tuple[object, object]]) -> list[str]:
    return [
        f"{name}: {told!r}, not {again!r}" for name, (told, again) in pairs.items() if told != again
    ]
