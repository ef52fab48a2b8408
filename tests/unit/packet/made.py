"""Receipts that can be calculated by hand."""

from outrider.packet.finished import Finished
from outrider.v1 import generation_pb2 as pb


def receipt(**changed: object) -> pb.Receipt:
    """Eleven tokens in eleven passes: the first after 50 ms, the others 10 ms each, of which the
    verifier takes 8."""
    metadata = changed.pop("metadata", {"workload": "chat", "language": "en"})
    traits = {"greedy": True, "priority": 0, "features": [], "metadata": metadata}
    policy = {"workload_class": "chat", "speculation": "off", "version": "1", "digest": "ab"}
    values: dict[str, object] = {
        "request_id": "r",
        "outcome": "length",
        "decision": "policy_target_only",
        "arrived_at_s": 1000.0,
        "num_output_tokens": 11,
        "num_cycles": 11,
        "num_target_passes": 11,
        "verify_ms": 40.0 + 80.0,
        "prefill_ms": 40.0,
        "ttft_ms": 50.0,
        "total_ms": 150.0,
        "traits": {**traits, **changed.pop("traits", {})},  # type: ignore[dict-item]
        "policy": {**policy, **changed.pop("policy", {})},  # type: ignore[dict-item]
    }
    return pb.Receipt(**(values | changed))  # type: ignore[arg-type]


def control(**changed: object) -> Finished:
    """A request that asked for target-only itself."""
    return Finished(receipt(**({"decision": "target_only_requested"} | changed)))


def drafted(**changed: object) -> Finished:
    """The same eleven tokens with drafts: five later passes of 9 ms, 15 ms of waits, 10 ms else."""
    values: dict[str, object] = {
        "decision": "on",
        "num_cycles": 6,
        "num_target_passes": 6,
        "num_spec_steps": 5,
        "num_draft_tokens": 15,
        "num_accepted_draft_tokens": 5,
        "num_passes_saved": 5,
        "drafts_by_source": {"ngram": 5},
        "verify_ms": 40.0 + 45.0,
        "draft_ms": 15.0,
        "total_ms": 50.0 + 45.0 + 15.0 + 10.0,
    }
    return Finished(receipt(**(values | changed)))
