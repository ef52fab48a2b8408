"""A receipt explains its request by itself: decision and counts are worked out again from it."""

import asyncio
import itertools
import json
from collections import Counter
from collections.abc import Iterator
from contextlib import AsyncExitStack, aclosing
from io import StringIO
from pathlib import Path

import grpc
import pytest

from outrider.cli.receipt import print_receipt
from outrider.cli.render import plain_console
from outrider.client import Choice, collect, generate_request
from outrider.policy import read_policy
from outrider.receipts import (
    TimeSplit,
    decision_of,
    disagreements,
    from_line,
    read_receipts,
    reason_counts,
    to_line,
)
from outrider.sampling import AcceptanceRule, SamplingParams
from outrider.v1 import generation_pb2 as pb
from tests.cluster import VERIFIER_NAMES, Cluster, cluster, serving
from tests.integration.test_measures import Samples, read
from tests.scrape import free_port
from tests.statistical.law import TableLaw
from tests.table_model import VOCAB_SIZE, table_drafter, table_verifier

pytestmark = pytest.mark.integration

TARGET = TableLaw.random(VOCAB_SIZE, seed=3)
DRAFT = TableLaw(TARGET.logits + TableLaw.random(VOCAB_SIZE, seed=4, scale=0.6).logits)
POLICY = """
version: 2026-12
metadata: [x-class]
classes:
  - name: interactive
    when: {metadata: {x-class: interactive}, features: {logprobs: false}}
    speculation: on
    draft_tokens: {min: 2, max: 4}
    sources: model
  - name: fixed
    when: {metadata: {x-class: [fixed, constant]}}
    speculation: on
    draft_tokens: 3
    draft_wait_ms: 5000
  - name: judged
    when: {metadata: {x-class: judged}}
    speculation: shadow
    shadow: {share: 0.5}
  - name: batch
    when: {priority: {max: -1}}
    speculation: off
  - name: strict
    when: {metadata: {x-class: strict}}
    speculation: on
    draft_tokens: {max: 4}
    fallbacks: {unpermitted_options: refuse}
"""

Sent = tuple[str, pb.GenerateRequest]
"""A class and a request."""


def traffic() -> Iterator[Sent]:
    """Requests of every class, rule and option, told apart by their seeds."""
    seeds = itertools.count(1)
    options: list[dict[str, object]] = [
        {},
        {"target_only": True},
        {"num_draft_tokens": 9},
        {"max_draft_tokens": 3},
        {"sources": ["ngram", "model"]},
    ]
    laws = [(0.0, None), (0.9, None), (0.9, AcceptanceRule.BLOCK)]
    for name in ("interactive", "constant", "judged", "batch", "other"):
        drafts = name in ("interactive", "constant", "judged")
        for temperature, rule in laws if drafts else laws[:2]:
            for chosen in options if drafts else options[:2]:
                sampling = SamplingParams(temperature=temperature, max_tokens=16, seed=next(seeds))
                request = generate_request([1, 2], sampling, acceptance_rule=rule, **chosen)  # type: ignore[arg-type]
                request.priority = -5 if name == "batch" else 0
                yield name, request
    several = SamplingParams(temperature=0.9, max_tokens=12, seed=1000, n=3, logprobs=2)
    yield "interactive", generate_request([1, 2], several)
    yield "fixed", generate_request([1, 2], several)
    stopped = SamplingParams(temperature=0.9, max_tokens=60, seed=2, stop_token_ids=(5,))
    yield "fixed", generate_request([1, 2], stopped)


async def play(services: Cluster, number: int, sent: Sent) -> tuple[str, tuple[Choice, ...]]:
    name, request = sent
    metadata = (("x-class", name), ("x-request-id", f"r{number}"), ("authorization", "secret"))
    call = services.client.stub.Generate(request, timeout=30, metadata=metadata)
    return f"r{number}", collect([response async for response in call]).choices


async def test_decisions_and_counts_follow_from_the_receipts_alone(tmp_path: Path):
    """What must show: from the log, with nothing else, every decision is made and every count is
    had again; and they are those of the cycles that the clients saw, and of the measures."""
    policy, log, port = tmp_path / "policy.yaml", tmp_path / "receipts.jsonl", free_port()
    policy.write_text(POLICY)
    async with cluster(
        verifiers=[table_verifier(TARGET)],
        drafters=[table_drafter(DRAFT)],
        policy=policy,
        receipt_log=log,
        num_draft_tokens="auto",
        metrics_port=port,
    ) as services:
        played = await asyncio.gather(*(play(services, *each) for each in enumerate(traffic())))
        kept = {
            name: (
                await services.client.stub.GetReceipt(pb.GetReceiptRequest(request_id=name))
            ).receipts
            for name, _ in played
        }
        samples = await read(port)
    assert samples["receipts_written_total", ()] <= samples["num_receipts_kept", ()] + 4
    text = log.read_text()
    assert "secret" not in text
    logged = list(read_receipts(log))
    assert len(logged) == sum(len(choices) for _, choices in played)
    for receipt in logged:
        assert disagreements(receipt) == [], to_line(receipt)
    assert_decisions(logged, policy)
    assert_same(played, kept, logged)
    assert_totals(samples, logged)


def assert_decisions(receipts: list[pb.Receipt], policy: Path) -> None:
    """All kinds of decisions are there; each receipt's excerpt decides as the file does."""
    whole = read_policy(policy)
    for receipt in receipts:
        again = decision_of(receipt)
        assert again.class_name == receipt.policy.workload_class
        assert again.reason == receipt.decision.partition(";")[0]
        assert receipt.policy.digest == whole.digest
        assert receipt.policy.version == "2026-12"
        if again.class_index is not None:
            assert again.workload_class == whole.classes[again.class_index]
    decisions = Counter(
        (receipt.policy.workload_class, receipt.decision.partition(";")[0]) for receipt in receipts
    )
    assert decisions.keys() == {
        ("interactive", "on"),
        ("interactive", "target_only_requested"),
        ("fixed", "on"),
        ("fixed", "target_only_requested"),
        ("judged", "shadow"),
        ("judged", "outside_shadow_share"),
        ("judged", "target_only_requested"),
        ("batch", "policy_target_only"),
        ("batch", "target_only_requested"),
        ("unclassified", "unclassified"),
        ("unclassified", "target_only_requested"),
    }
    narrowed = {
        (receipt.policy.workload_class, *receipt.policy.narrowed)
        for receipt in receipts
        if receipt.policy.narrowed
    }
    assert {("interactive", "num_draft_tokens"), ("interactive", "sources")} <= narrowed
    asked = [each for each in receipts if each.requested.num_draft_tokens == 9]
    sizes = {len(each.draft_size_histogram) - 1 for each in asked if each.num_spec_steps}
    assert sizes == {3, 4}, "no draft is longer than its class allows"


def assert_same(
    played: list[tuple[str, tuple[Choice, ...]]],
    kept: dict[str, list[pb.Receipt]],
    logged: list[pb.Receipt],
) -> None:
    """The client got what is kept and what was logged, and saw what it counts."""
    by_name = {(receipt.request_id, receipt.index): receipt for receipt in logged}
    for name, choices in played:
        assert sorted(each.index for each in kept[name]) == list(range(len(choices)))
        for index, choice in enumerate(choices):
            receipt = choice.complete.receipt
            assert receipt in kept[name]
            assert by_name[name, index] == receipt
            origins = [origin for chunk in choice.chunks for origin in chunk.origins]
            accepted = origins.count(pb.TOKEN_ORIGIN_ACCEPTED)
            assert receipt.num_accepted_draft_tokens == accepted
            assert receipt.num_cycles == len(choice.chunks)
            assert receipt.num_output_tokens == len(choice.token_ids)
            drafted = sum(
                chunk.origins[-1] != pb.TOKEN_ORIGIN_ONLY or len(chunk.origins) > 1
                for chunk in choice.chunks
            )
            assert receipt.num_spec_steps == drafted
            assert receipt.outcome in ("stop", "length")
            assert receipt.num_prompt_tokens == 2
            split = TimeSplit.of(receipt)
            assert 0 < split.network_ms <= receipt.total_ms
            assert split.rest_ms > 0


def assert_totals(samples: Samples, receipts: list[pb.Receipt]) -> None:
    """Counters are what the receipts add up to."""

    def total(name: str) -> Counter[tuple[str, ...]]:
        return Counter({key: value for (each, key), value in samples.items() if each == name})

    expected: dict[str, Counter[tuple[str, ...]]] = {
        name: Counter()
        for name in (
            "policy_decisions_total",
            "requests_total",
            "output_tokens_total",
            "spec_decode_num_drafts_total",
            "spec_decode_num_accepted_tokens_total",
            "fallbacks_total",
            "shadow_drafts_total",
            "shadow_accepted_tokens_total",
            "shadow_passes_saved_total",
        )
    }
    for receipt in receipts:
        decision = receipt.decision.partition(";")[0]
        workload_class = receipt.policy.workload_class
        expected["policy_decisions_total"][decision, workload_class] += 1
        expected["requests_total"][receipt.outcome,] += 1
        expected["output_tokens_total"][()] += receipt.num_output_tokens
        for source, count in receipt.drafts_by_source.items():
            expected["spec_decode_num_drafts_total"][source,] += count
        for source, count in receipt.accepted_tokens_by_source.items():
            expected["spec_decode_num_accepted_tokens_total"][source,] += count
        for reason, count in reason_counts(receipt.fallbacks).items():
            expected["fallbacks_total"][reason,] += count
        shadow = receipt.shadow
        for source, count in shadow.drafts_by_source.items():
            expected["shadow_drafts_total"][source, workload_class] += count
        for source, count in shadow.accepted_tokens_by_source.items():
            expected["shadow_accepted_tokens_total"][source, workload_class] += count
        expected["shadow_passes_saved_total"][workload_class,] += shadow.num_passes_saved
    for name, counts in expected.items():
        assert +total(name) == +counts, name
    assert sum(expected["shadow_drafts_total"].values()) > 0


async def test_refusals_failures_and_cancels_have_receipts_too(tmp_path: Path):
    policy, log = tmp_path / "policy.yaml", tmp_path / "receipts.jsonl"
    policy.write_text(POLICY)
    async with cluster(
        verifiers=[table_verifier(TARGET, gather_s=0.05)],
        policy=policy,
        receipt_log=log,
        num_draft_tokens="auto",
        max_running=1,
        max_waiting=0,
    ) as services:
        stub = services.client.stub

        async def ask(name: str, request: pb.GenerateRequest, workload_class: str = "") -> None:
            metadata = (("x-request-id", name), ("x-class", workload_class))
            call = stub.Generate(request, timeout=10, metadata=metadata)
            with pytest.raises(grpc.aio.AioRpcError):
                async for _ in call:
                    pass

        async def receipt(name: str) -> pb.Receipt:
            answer = await stub.GetReceipt(pb.GetReceiptRequest(request_id=name))
            (only,) = answer.receipts
            assert disagreements(only) == []
            return only

        long = SamplingParams(temperature=0.0, max_tokens=60)
        await ask("field", generate_request([1, 2], SamplingParams(), priority=101))
        await ask("model", generate_request([1, 2], SamplingParams(), model="none"))
        wide = generate_request([1, 2], SamplingParams(), num_draft_tokens=5)
        await ask("strict", wide, "strict")
        running = services.client.stream(
            generate_request([1, 2], long, target_only=True), request_id="cancelled"
        )
        async with aclosing(running) as first:
            await anext(first)
            await ask("full", generate_request([1, 2], long))
        await asyncio.sleep(0.5)
        field, model, strict = [await receipt(name) for name in ("field", "model", "strict")]
        full, cancelled = await receipt("full"), await receipt("cancelled")
        with pytest.raises(grpc.aio.AioRpcError, match="no receipt of 'never'") as missing:
            await receipt("never")
        with pytest.raises(grpc.aio.AioRpcError, match="request_id: must be given"):
            await receipt("")
    assert missing.value.code() is grpc.StatusCode.NOT_FOUND
    assert (field.outcome, field.status_code) == ("refused", "INVALID_ARGUMENT")
    assert field.error == "priority: 101 is outside [-100, 100]"
    assert field.traits.priority == 101
    assert (model.outcome, model.status_code) == ("refused", "NOT_FOUND")
    assert model.traits.model == "none"
    assert strict.error == "speculation.num_draft_tokens: 5 is outside [1, 4] of class strict"
    assert strict.requested.num_draft_tokens == 5
    assert (full.outcome, full.status_code) == ("refused", "RESOURCE_EXHAUSTED")
    assert "the queue is full" in full.error
    assert full.policy.workload_class == "unclassified", "that was known by then"
    assert (cancelled.outcome, cancelled.status_code) == ("cancelled", "")
    assert cancelled.num_output_tokens >= 1
    assert cancelled.decision == "target_only_requested"
    logged = [each.request_id for each in read_receipts(log)]
    assert logged == ["field", "model", "strict", "full", "cancelled"]


async def test_a_lost_verifier_is_told_in_the_receipt():
    async with AsyncExitStack() as verifier:
        slow = table_verifier(TARGET, gather_s=0.2)
        address = await verifier.enter_async_context(serving(VERIFIER_NAMES, slow))
        async with cluster(verifiers=[], verifier_addresses=[address]) as services:
            request = generate_request([1, 2], SamplingParams(temperature=0.0, max_tokens=60))
            async with aclosing(services.client.stream(request, request_id="lost")) as responses:
                await anext(responses)
                await verifier.aclose()
                with pytest.raises(grpc.aio.AioRpcError):
                    async for _ in responses:
                        pass
            asked = pb.GetReceiptRequest(request_id="lost")
            (receipt,) = (await services.client.stub.GetReceipt(asked)).receipts
    assert disagreements(receipt) == []
    assert (receipt.outcome, receipt.status_code) == ("error", "UNAVAILABLE")
    assert "the verifier was lost" in receipt.error
    assert receipt.num_output_tokens > 0


def changed(receipt: pb.Receipt) -> Iterator[tuple[str, pb.Receipt]]:
    """Yield receipts with one thing wrong each."""

    def made(name: str) -> tuple[str, pb.Receipt]:
        other = pb.Receipt()
        other.CopyFrom(receipt)
        return name, other

    for name in (
        "num_spec_steps",
        "num_draft_tokens",
        "num_accepted_draft_tokens",
        "num_passes_saved",
        "num_cycles",
        "num_output_tokens",
        "draft_acceptance_rate",
        "mean_acceptance_length",
    ):
        _, other = made(name)
        setattr(other, name, getattr(other, name) + 1)
        yield name, other
    for name in ("rule", "decision", "outcome", "status_code"):
        _, other = made(name)
        setattr(other, name, "another")
        yield name, other
    for name in ("workload_class", "speculation", "version"):
        _, other = made(f"policy.{name}")
        setattr(other.policy, name, "another")
        yield f"policy.{name}", other
    name, other = made("traits.metadata")
    other.traits.metadata["x-class"] = "other"
    yield name, other
    name, other = made("requested")
    other.requested.target_only = True
    yield name, other
    name, other = made("fallbacks")
    other.fallbacks[0].count += 1
    yield name, other
    name, other = made("acceptance_histogram")
    other.acceptance_histogram[0] += 1
    yield name, other
    name, other = made("total_ms")
    other.total_ms = other.verify_ms / 2
    yield name, other


async def test_a_receipt_that_was_tampered_with_disagrees_with_itself(tmp_path: Path):
    policy = tmp_path / "policy.yaml"
    policy.write_text(POLICY)
    async with cluster(
        verifiers=[table_verifier(TARGET)],
        drafters=[table_drafter(DRAFT)],
        policy=policy,
        num_draft_tokens="auto",
    ) as services:
        sampling = SamplingParams(temperature=0.9, max_tokens=16, seed=3)
        _, choices = await play(services, 0, ("fixed", generate_request([1, 2], sampling)))
    receipt = choices[0].complete.receipt
    assert receipt.num_spec_steps > 0
    assert disagreements(receipt) == []
    assert "class fixed: yes: metadata.x-class is fixed\n" in printed(receipt)
    assert "does not agree" not in printed(receipt)
    receipt_of_another = next(other for _, other in changed(receipt))
    assert "does not agree with the rest: num_spec_steps" in printed(receipt_of_another)
    silent = [name for name, other in changed(receipt) if not disagreements(other)]
    assert silent == []


def printed(receipt: pb.Receipt) -> str:
    """What ``outrider receipt`` shows."""
    console = plain_console()
    console.file = StringIO()
    console.width = 200
    print_receipt(console, receipt)
    return console.file.getvalue()


def test_lines_are_read_back_and_broken_ones_are_told(tmp_path: Path):
    receipt = pb.Receipt(request_id="a", seed=-(2**62), outcome="stop", draft_acceptance_rate=0.3)
    receipt.min_decision_margin = float("inf")
    line = to_line(receipt)
    assert "\n" not in line
    assert json.loads(line)["num_draft_tokens"] == 0, "zeros are there as well"
    assert from_line(line) == receipt
    assert from_line(line.replace('"index": 0', '"of_a_later_version": 1')) == receipt
    path, broken = tmp_path / "log", list[int]()
    path.write_text(f"{line}\n{line[:40]}\n\n{line}\n[]\n")
    assert list(read_receipts(path, broken)) == [receipt, receipt]
    assert broken == [2, 5]
