"""What Prometheus reads follows from the cycles, and adds up to the receipts."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path

import grpc
import pytest
from prometheus_client.parser import text_string_to_metric_families

from drafter_svc.__main__ import open_drafter
from drafter_svc.settings import DrafterSettings
from orchestrator import generation
from orchestrator.decode import Cycle
from orchestrator.sequence import Sequence
from orchestrator.verdict import Origin
from outrider.client import Output, generate_request
from outrider.sampling import AcceptanceRule, SamplingParams
from tests.cluster import Cluster, cluster
from tests.scrape import free_port, scrape
from tests.statistical.law import TableLaw
from tests.table_model import VOCAB_SIZE, table_drafter, table_verifier
from verifier_svc.__main__ import open_verifier
from verifier_svc.settings import VerifierSettings

pytestmark = pytest.mark.integration

TARGET = TableLaw.random(VOCAB_SIZE, seed=3)
DRAFT = TableLaw(TARGET.logits + TableLaw.random(VOCAB_SIZE, seed=4, scale=0.6).logits)
MODEL = "table"
NUM_DRAFT_TOKENS = 3

Samples = dict[tuple[str, tuple[str, ...]], float]
"""Values by name without prefix, and by the values of all labels but the model, sorted by label."""


async def read(port: int, model: str = MODEL) -> Samples:
    samples: Samples = {}
    for family in text_string_to_metric_families(await scrape(port)):
        for name, labels, value, *_ in family.samples:
            assert labels.pop("model", model) == model
            if name.startswith("outrider_") and not name.endswith("_created"):
                values = tuple(labels[label] for label in sorted(labels))
                samples[name.removeprefix("outrider_"), values] = value
    return samples


@pytest.fixture
def cycles(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Cycle]]:
    """The cycles of every request by its id, as the decode loop yields them."""
    seen: dict[str, list[Cycle]] = {}
    decode = generation.decode

    async def recorded(sequence: Sequence, *parts) -> AsyncIterator[Cycle]:
        mine = seen.setdefault(sequence.sequence_id, [])
        async for cycle in decode(sequence, *parts):
            mine.append(cycle)
            yield cycle

    monkeypatch.setattr(generation, "decode", recorded)
    return seen


def recomputed(requests: list[list[Cycle]]) -> Counter[tuple[str, tuple[str, ...]]]:
    """The counters that follow from cycles alone."""
    counts: Counter[tuple[str, tuple[str, ...]]] = Counter()
    for cycle in (cycle for cycles in requests for cycle in cycles):
        tokens, source = cycle.delivery.tokens, (cycle.draft.source,)
        assert source[0] in ("model", "lookup", "")
        assert not cycle.verdict.invalid_draft
        counts["output_tokens_total", ()] += len(tokens)
        counts["target_passes_total", ()] += cycle.verdict.num_passes
        counts["passes_saved_total", ()] += len(tokens) - 1
        if not cycle.draft:
            continue
        accepted = [token.origin for token in tokens].count(Origin.ACCEPTED)
        counts["spec_decode_num_drafts_total", source] += 1
        counts["spec_decode_num_draft_tokens_total", source] += len(cycle.draft)
        counts["spec_decode_num_accepted_tokens_total", source] += accepted
        for position in range(accepted):
            counts["spec_decode_num_accepted_tokens_per_pos_total", (str(position),)] += 1
        counts["rolled_back_tokens_total", ()] += len(cycle.draft) - accepted
        counts["acceptance_length_count", ()] += 1
        counts["acceptance_length_sum", ()] += 1 + accepted
        for bound in range(1 + accepted, 10):
            counts["acceptance_length_bucket", (f"{bound}.0",)] += 1
    return counts


def requests() -> Iterator[dict[str, object]]:
    """Requests of every kind: greedy and sampled, every rule, every source, none; stops, ends."""
    for temperature in (0.0, 0.9):
        for rule in AcceptanceRule:
            for more in ({}, {"sources": ["model"]}, {"sources": ["ngram"]}, {"target_only": True}):
                yield {"sampling": {"temperature": temperature}, "acceptance_rule": rule, **more}
    yield {"sampling": {"temperature": 0.9, "stop_token_ids": (5,), "max_tokens": 60}}
    yield {"sampling": {"temperature": 0.9, "max_tokens": 1}}


async def play(services: Cluster, number: int, request: dict[str, object]) -> Output:
    sampling = {"max_tokens": 20, "seed": number} | request.pop("sampling")  # type: ignore[operator]
    message = generate_request([1, 2], SamplingParams(**sampling), **request)  # type: ignore[arg-type]
    return await services.client.generate(message, timeout_s=30)


async def test_every_counter_follows_from_the_cycles_and_adds_up_to_the_receipts(cycles):
    port = free_port()
    async with cluster(
        verifiers=[table_verifier(TARGET)],
        drafters=[table_drafter(DRAFT)],
        draft_wait_ms=10_000,
        num_draft_tokens=NUM_DRAFT_TOKENS,
        metrics_port=port,
    ) as services:
        before = await read(port)
        assert not any(name.startswith("requests") for name, _ in before)
        played = [play(services, *each) for each in enumerate(requests())]
        outputs = await asyncio.gather(*played)
        samples = await read(port)
    receipts = [output.complete.receipt for output in outputs]
    assert samples["requests_total", ("length",)] + samples["requests_total", ("stop",)] == len(
        outputs
    )

    expected = recomputed(list(cycles.values()))
    assert {source for name, source in expected if name == "spec_decode_num_drafts_total"} == {
        ("model",),
        ("lookup",),
    }
    assert expected["rolled_back_tokens_total", ()] > 0 < expected["passes_saved_total", ()]
    names = {name for name, _ in expected}
    beyond = ("+Inf",), *((f"{bound}.0",) for bound in (13, 17, 25, 33, 65))
    scraped = {
        key: value for key, value in samples.items() if key[0] in names and key[1] not in beyond
    }
    assert scraped == {key: value for key, value in expected.items() if value or key in scraped}

    def total(name: str) -> float:
        return sum(value for (each, _), value in samples.items() if each == name)

    for name, field in {
        "spec_decode_num_drafts_total": "num_spec_steps",
        "spec_decode_num_draft_tokens_total": "num_draft_tokens",
        "spec_decode_num_accepted_tokens_total": "num_accepted_draft_tokens",
        "spec_decode_num_accepted_tokens_per_pos_total": "num_accepted_draft_tokens",
        "target_passes_total": "num_target_passes",
        "passes_saved_total": "num_passes_saved",
        "failovers_total": "num_failovers",
        "ledger_heals_total": "num_ledger_heals",
    }.items():
        assert total(name) == sum(getattr(receipt, field) for receipt in receipts), name
    fallbacks: Counter[str] = Counter()
    for receipt in receipts:
        fallbacks.update({each.reason: each.count for each in receipt.fallbacks})
    assert fallbacks == {
        labels[0]: value for (name, labels), value in samples.items() if name == "fallbacks_total"
    }
    for name, field in {
        "queue_time": "queue_ms",
        "draft_wait": "draft_ms",
        "verify_time": "verify_ms",
        "network_time": "network_ms",
        "time_to_first_token": "ttft_ms",
    }.items():
        assert samples[f"{name}_seconds_count", ()] == len(outputs)
        stated_s = sum(getattr(receipt, field) for receipt in receipts) / 1e3
        assert samples[f"{name}_seconds_sum", ()] == pytest.approx(stated_s, rel=1e-4), name
    whole_s = sum(receipt.total_ms for receipt in receipts) / 1e3
    assert 0 < samples["e2e_request_latency_seconds_sum", ()] <= whole_s * 1.0001
    assert samples["time_per_output_token_seconds_count", ()] == len(outputs) - 1
    assert_blocks(samples, outputs, list(cycles.values()))


def assert_blocks(samples: Samples, outputs: list[Output], requests: list[list[Cycle]]) -> None:
    """Every cycle that wanted a draft of the drafter's is a hit or a miss, none was late."""
    at = {result: samples["draft_blocks_total", (result,)] for result in ("hit", "miss")}
    wanted = used = 0
    for cycles in requests:
        used += sum(cycle.draft.source == "model" for cycle in cycles)
    for output in outputs:
        receipt = output.complete.receipt
        if not receipt.HasField("drafter"):
            continue
        without = {each.reason: each.count for each in receipt.fallbacks}
        assert without.keys() <= {"prefill", "near_the_end"}
        num_cycles = len(output.chunks)
        wanted += num_cycles - sum(without.values())
    assert at["hit"] + at["miss"] == wanted == used
    assert at["hit"] > 0 < at["miss"]
    assert samples["draft_blocks_total", ("late",)] == 0
    assert samples["draft_blocks_total", ("stale",)] > 0


async def test_requests_that_fail_or_are_cancelled_are_counted_too(cycles):
    port = free_port()
    async with cluster(
        verifiers=[table_verifier(TARGET, gather_s=0.05)],
        max_running=1,
        max_waiting=0,
        metrics_port=port,
    ) as services:
        idle = await read(port)
        assert idle["workers", ("verifier", "ready")] == 1
        assert idle["workers", ("drafter", "ready")] == idle["workers", ("drafter", "refused")] == 0
        request = generate_request([1, 2], SamplingParams(temperature=0.0, max_tokens=60))
        async with aclosing(services.client.stream(request)) as first:
            await anext(first)
            assert (await read(port))["num_requests_running", ()] == 1
            with pytest.raises(grpc.aio.AioRpcError, match="the queue is full"):
                await services.client.generate(request)
        for _ in range(200):
            samples = await read(port)
            if ("requests_total", ("cancelled",)) in samples:
                break
            await asyncio.sleep(0.05)
    outcomes = {
        labels[0]: value for (name, labels), value in samples.items() if name == "requests_total"
    }
    assert outcomes == {"error": 1, "cancelled": 1}
    assert samples["num_requests_running", ()] == samples["num_requests_waiting", ()] == 0
    assert samples["queue_time_seconds_count", ()] == 1, "the refused one never had a slot"
    assert samples["output_tokens_total", ()] == sum(
        len(cycle.delivery.tokens) for mine in cycles.values() for cycle in mine
    )


async def test_workers_tell_what_their_engines_did(toy: Path):
    target, draft = free_port(), free_port()
    async with cluster(
        verifiers=[lambda: open_verifier(VerifierSettings(model=str(toy), metrics_port=target))],
        drafters=[lambda: open_drafter(DrafterSettings(model=str(toy), metrics_port=draft))],
    ) as services:
        request = generate_request([7] * 40, SamplingParams(temperature=0.0, max_tokens=12))
        outputs = [await services.client.generate(request, timeout_s=30) for _ in range(2)]
        verifier, drafter = await read(target), await read(draft)
    num_passes = sum(output.complete.receipt.num_target_passes for output in outputs)
    assert verifier["engine_passes_total", ()] == num_passes
    assert verifier["engine_rows_per_pass_count", ()] == num_passes
    assert verifier["engine_rows_per_pass_sum", ()] >= 40 + num_passes
    cached = outputs[1].complete.cached_tokens
    assert verifier["prefix_cache_hits_total", ()] == cached > 0
    assert verifier["prefix_cache_queries_total", ()] > cached
    assert 0 <= verifier["kv_cache_usage_perc", ()] < 1
    assert verifier["num_jobs_waiting", ()] == verifier["preemptions_total", ()] == 0
    assert drafter["engine_passes_total", ()] > 0 < drafter["engine_compute_seconds_total", ()]
    assert {"num_leases", "num_jobs_waiting"} <= {name for name, _ in drafter}
