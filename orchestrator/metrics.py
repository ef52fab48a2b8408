"""The orchestrator's measures: what requests were once they have ended, and what is there now."""

from collections import Counter as Count
from collections.abc import Iterator
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from orchestrator.admission import Admission
from orchestrator.generation import Generation
from orchestrator.policy_in_force import PolicyInForce
from orchestrator.receipt import BlockResult
from orchestrator.receipt_log import DROP_REASONS, ReceiptLog
from orchestrator.receipt_store import ReceiptStore
from orchestrator.shadow import ShadowRecord
from orchestrator.worker import Role, WorkerState
from orchestrator.workers import WorkerPool
from outrider import sources

NAMESPACE = "outrider"
LENGTHS = (*range(1, 10), 13, 17, 25, 33, 65)
SECONDS = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0),
)


class OrchestratorMetrics:
    """Adds up ended requests from the stats that their receipts are made from."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, about: str, *labels: str) -> Counter:
            return Counter(name, about, labels, namespace=NAMESPACE, registry=registry)

        def seconds(name: str, about: str) -> Histogram:
            return Histogram(
                f"{name}_seconds",
                about,
                ("model",),
                namespace=NAMESPACE,
                registry=registry,
                buckets=SECONDS,
            )

        self._requests = counter(
            "requests", "Requests that ended, each choice by itself.", "model", "outcome"
        )
        self._decisions = counter(
            "policy_decisions",
            "Requests that ended, by class and by what the policy decided.",
            *("model", "workload_class", "decision"),
        )
        by_class = ("model", "workload_class", "source")
        self._shadow_drafts = counter(
            "shadow_drafts", "Drafts that were judged without being used.", *by_class
        )
        self._shadow_tokens = counter("shadow_draft_tokens", "Their tokens.", *by_class)
        self._shadow_accepted = counter(
            "shadow_accepted_tokens", "Those of them that would have been accepted.", *by_class
        )
        self._shadow_saved = counter(
            "shadow_passes_saved",
            "Passes of the target that such drafts would have saved.",
            *("model", "workload_class"),
        )
        self._drafts = counter(
            "spec_decode_num_drafts", "Cycles that verified a draft.", "model", "source"
        )
        self._draft_tokens = counter(
            "spec_decode_num_draft_tokens", "Draft tokens that were verified.", "model", "source"
        )
        self._accepted_tokens = counter(
            "spec_decode_num_accepted_tokens", "Draft tokens delivered.", "model", "source"
        )
        self._accepted_per_pos = counter(
            "spec_decode_num_accepted_tokens_per_pos",
            "Draft tokens delivered, by their place in the draft from 0 on.",
            *("model", "position"),
        )
        self._rolled_back = counter(
            "rolled_back_tokens", "Draft tokens that were verified in vain.", "model"
        )
        self._output_tokens = counter("output_tokens", "Tokens delivered.", "model")
        self._target_passes = counter("target_passes", "Forward passes of the target.", "model")
        self._passes_saved = counter(
            "passes_saved", "Passes that target-only decoding would have taken as well.", "model"
        )
        self._fallbacks = counter(
            "fallbacks", "Cycles without a usable draft, drafters lost.", "model", "reason"
        )
        self._lengths_chosen = counter(
            "draft_length_choices",
            "Cycles by why they asked for as many draft tokens as they did.",
            *("model", "reason"),
        )
        self._failovers = counter("failovers", "Verifiers lost in mid-sequence.", "model")
        self._heals = counter(
            "ledger_heals", "Times that a worker's KV was not what was expected.", "model"
        )
        self._feature_bytes = counter(
            "feature_bytes", "Bytes of hidden states that verifiers sent for drafters.", "model"
        )
        self._blocks = counter("draft_blocks", "What came of the drafters' blocks.", "result")
        for result in BlockResult:
            self._blocks.labels(result.value)
        self._lengths = Histogram(
            "acceptance_length",
            "Tokens of a cycle that verified a draft: the accepted and the target's own.",
            ("model",),
            namespace=NAMESPACE,
            registry=registry,
            buckets=LENGTHS,
        )
        self._queue = seconds("queue_time", "Waiting for a slot.")
        self._draft_wait = seconds("draft_wait", "Waiting for drafts, all cycles of a request.")
        self._verify = seconds("verify_time", "Queue and passes of verifiers, of a request.")
        self._network = seconds("network_time", "Round trips less what verifiers state.")
        self._first_token = seconds("time_to_first_token", "From arrival to the first tokens.")
        self._per_token = seconds("time_per_output_token", "Mean time of a token after those.")
        self._latency = seconds("e2e_request_latency", "From arrival to the end.")

    def observe(self, generation: Generation) -> None:
        """Add one request that has ended, in whatever way."""
        model, stats = generation.request.target.identity.name, generation.stats
        plan = generation.request.plan
        self._requests.labels(model, generation.outcome).inc()
        self._decisions.labels(model, plan.class_name, plan.decision).inc()
        for counter, by_source in (
            (self._drafts, stats.drafts_by_source),
            (self._draft_tokens, stats.draft_tokens_by_source),
            (self._accepted_tokens, stats.accepted_tokens_by_source),
        ):
            for source, count in by_source.items():
                counter.labels(model, _known(source)).inc(count)
        for position, count in enumerate(stats.accepted_by_position()):
            self._accepted_per_pos.labels(model, str(position)).inc(count)
        for counter, count in (
            (self._rolled_back, stats.num_draft_tokens - stats.num_accepted_draft_tokens),
            (self._output_tokens, stats.num_output_tokens),
            (self._target_passes, stats.num_target_passes),
            (self._passes_saved, max(stats.num_passes_saved, 0)),
            (self._failovers, stats.num_failovers),
            (self._heals, generation.num_ledger_heals),
            (self._feature_bytes, stats.num_feature_bytes),
        ):
            counter.labels(model).inc(count)
        for reason, count in stats.fallbacks.items():
            self._fallbacks.labels(model, reason).inc(count)
        for reason, count in stats.length_reasons.items():
            self._lengths_chosen.labels(model, reason).inc(count)
        for result, count in stats.blocks.items():
            self._blocks.labels(result.value).inc(count)
        for accepted, count in stats.acceptance_histogram.items():
            for _ in range(count):
                self._lengths.labels(model).observe(1 + accepted)
        if generation.shadow is not None:
            self._observe_shadow(generation.shadow, model, plan.class_name)
        if generation.was_admitted:
            self._observe_times(generation, model)

    def _observe_shadow(self, record: ShadowRecord, model: str, class_name: str) -> None:
        stats = record.stats
        for counter, by_source in (
            (self._shadow_drafts, stats.drafts_by_source),
            (self._shadow_tokens, stats.draft_tokens_by_source),
            (self._shadow_accepted, stats.accepted_tokens_by_source),
        ):
            for source, count in by_source.items():
                counter.labels(model, class_name, _known(source)).inc(count)
        self._shadow_saved.labels(model, class_name).inc(max(stats.num_passes_saved, 0))

    def _observe_times(self, generation: Generation, model: str) -> None:
        stats, total_ms = generation.stats, generation.elapsed_ms
        times_ms = [
            (self._queue, stats.queue_ms),
            (self._draft_wait, stats.draft_ms),
            (self._verify, stats.verify_ms),
            (self._network, stats.network_ms),
            (self._latency, total_ms),
        ]
        if stats.num_output_tokens:
            times_ms.append((self._first_token, stats.ttft_ms))
        if stats.num_output_tokens > 1:
            rest_ms = (total_ms - stats.ttft_ms) / (stats.num_output_tokens - 1)
            times_ms.append((self._per_token, rest_ms))
        for histogram, time_ms in times_ms:
            histogram.labels(model).observe(time_ms / 1e3)


@dataclass(frozen=True, slots=True, eq=False)
class PresentState(Collector):
    """What runs, waits and is connected at the moment of the scrape."""

    pool: WorkerPool
    admission: Admission

    def collect(self) -> Iterator[Metric]:
        """Yield the gauges, and the refusals of workers."""
        running, waiting = self.admission.num_running, self.admission.num_waiting
        yield _gauge("num_requests_running", "Requests that are decoded.", running)
        yield _gauge("num_requests_waiting", "Requests that wait for a slot.", waiting)
        # A scrape has a thread of its own: what the event loop changes is copied first.
        workers, refusals = list(self.pool.workers), dict(self.pool.num_refusals)
        present = Count((worker.role, worker.state) for worker in workers)
        states = GaugeMetricFamily(
            f"{NAMESPACE}_workers", "Known workers.", labels=("role", "state")
        )
        for role in Role:
            for state in WorkerState:
                states.add_metric((role.value, state.value), present[role, state])
        yield states
        refused = CounterMetricFamily(
            f"{NAMESPACE}_identity_refusals",
            "Times that a worker was refused for what it is.",
            labels=("address",),
        )
        for address in sorted({worker.address for worker in workers} | refusals.keys()):
            refused.add_metric((address,), refusals.get(address, 0))
        yield refused
        yield from self._draft_lengths()

    def _draft_lengths(self) -> Iterator[Metric]:
        """Yield what was last chosen, by model and source."""

        def gauge(name: str, about: str) -> GaugeMetricFamily:
            return GaugeMetricFamily(f"{NAMESPACE}_{name}", about, labels=("model", "source"))

        length = gauge("draft_length", "Draft tokens that the latest cycle asked for.")
        gain = gauge("draft_length_gain", "Its predicted rate over that of target-only.")
        outcomes = gauge("draft_outcomes", "Outcomes that the latest cycle was prepared for.")
        is_on = gauge("draft_source_on", "1 while drafts of a source are used, 0 switched off.")
        names = {target.key: name for name, target in list(self.pool.targets.items())}
        for (key, source), known in list(self.pool.estimates.sources.items()):
            if key in names and known.num_choices:
                labels = (names[key], source)
                length.add_metric(labels, known.last_length)
                gain.add_metric(labels, known.last_gain)
                outcomes.add_metric(labels, known.last_outcomes)
                is_on.add_metric(labels, 0.0 if known.switch.is_off else 1.0)
        yield from (length, gain, outcomes, is_on)


@dataclass(frozen=True, slots=True, eq=False)
class PolicyState(Collector):
    """Which policy is in force, and what came of reading it again."""

    policies: PolicyInForce

    def collect(self) -> Iterator[Metric]:
        """Yield which it is, and the counts."""
        policies = self.policies
        policy = policies.policy
        told = GaugeMetricFamily(
            f"{NAMESPACE}_policy_info", "The policy in force.", labels=("version", "digest")
        )
        told.add_metric((policy.version, policy.digest), 1.0)
        yield told
        yield _gauge("policy_loaded_timestamp_seconds", "When it was read.", policies.loaded_at_s)
        reloads = CounterMetricFamily(
            f"{NAMESPACE}_policy_reloads",
            "Times that the policy file was read again; refused: what it said was wrong.",
            labels=("result",),
        )
        reloads.add_metric(("loaded",), policies.num_reloads)
        reloads.add_metric(("refused",), policies.num_failures)
        yield reloads


@dataclass(frozen=True, slots=True, eq=False)
class ReceiptState(Collector):
    """What became of receipts."""

    receipts: ReceiptStore
    receipt_log: ReceiptLog | None

    def collect(self) -> Iterator[Metric]:
        """Yield how many are kept, were written, and were not."""
        yield _gauge("num_receipts_kept", "Requests with receipts.", len(self.receipts))
        written, dropped = 0, dict.fromkeys(DROP_REASONS, 0)
        if self.receipt_log is not None:
            written = self.receipt_log.num_written
            dropped |= self.receipt_log.dropped
        yield CounterMetricFamily(
            f"{NAMESPACE}_receipts_written", "Lines of the receipt log.", value=written
        )
        lost = CounterMetricFamily(
            f"{NAMESPACE}_receipts_dropped",
            "Receipts that are not in the log.",
            labels=("reason",),
        )
        for reason, count in dropped.items():
            lost.add_metric((reason,), count)
        yield lost


def _known(source: str) -> str:
    """Return the name of a source; what drafters call themselves must not make series."""
    return source if source in sources.NAMES else "other"


def _gauge(name: str, about: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"{NAMESPACE}_{name}", about, value=value)
