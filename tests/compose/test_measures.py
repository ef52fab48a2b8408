"""What Prometheus has gathered agrees with the receipts; the dashboard asks for what there is."""

import asyncio
import json
import re
from collections import Counter

import pytest

from outrider.client import Client, Output
from tests.compose.deployment import ROOT, Deployment, until
from tests.compose.requests import QUESTIONS, Answers, ask

pytestmark = [pytest.mark.compose, pytest.mark.asyncio(loop_scope="session")]

DASHBOARD = ROOT / "docker/grafana/dashboards/outrider.json"
# May stand in the dashboard without a value: nothing of the kind may have happened yet.
RARE = re.compile("failovers|ledger_heals|identity_refusals|preemptions")


def by_metric(outputs: list[Output]) -> dict[str, int]:
    """Return what the receipts say, by the metric that says the same."""
    receipts = [output.complete.receipt for output in outputs]
    return {
        "requests_total": len(outputs),
        "output_tokens_total": sum(len(output.token_ids) for output in outputs),
        "target_passes_total": sum(each.num_target_passes for each in receipts),
        "passes_saved_total": sum(each.num_passes_saved for each in receipts),
        "spec_decode_num_drafts_total": sum(each.num_spec_steps for each in receipts),
        "spec_decode_num_draft_tokens_total": sum(each.num_draft_tokens for each in receipts),
        "spec_decode_num_accepted_tokens_total": sum(
            each.num_accepted_draft_tokens for each in receipts
        ),
        "fallbacks_total": sum(count.count for each in receipts for count in each.fallbacks),
        "acceptance_length_count": sum(each.num_spec_steps for each in receipts),
        "e2e_request_latency_seconds_count": len(outputs),
        "time_to_first_token_seconds_count": len(outputs),
    }


async def measured(deployment: Deployment, names: list[str]) -> dict[str, float]:
    """Return the sums over all series, of a scrape after now."""
    await deployment.scraped()
    sums = [await deployment.figure(f"sum(outrider_{name})") for name in names]
    return dict(zip(names, sums, strict=True))


@pytest.mark.slow
async def test_prometheus_agrees_with_the_receipts(
    deployment: Deployment, answers: Answers
) -> None:
    await deployment.serving()
    names = list(by_metric([]))
    before = await measured(deployment, names)
    async with Client(deployment.address) as client:
        outputs = await asyncio.gather(*(ask(client, each, answers) for each in QUESTIONS))
    after = await measured(deployment, names)
    counted = {name: after[name] - before[name] for name in names}
    assert counted == by_metric(list(outputs))


@pytest.mark.slow
async def test_accepted_tokens_by_position_and_source_agree_with_the_receipts(
    deployment: Deployment, answers: Answers
) -> None:
    position = "sum by (position) (outrider_spec_decode_num_accepted_tokens_per_pos_total)"
    source = "sum by (source) (outrider_spec_decode_num_draft_tokens_total)"
    await deployment.scraped()
    before = [
        Counter(await deployment.figures(position, "position")),
        Counter(await deployment.figures(source, "source")),
    ]
    async with Client(deployment.address) as client:
        outputs = await asyncio.gather(*(ask(client, each, answers) for each in QUESTIONS))
    by_length: Counter[int] = Counter()
    by_source: Counter[str] = Counter()
    for output in outputs:
        receipt = output.complete.receipt
        by_length.update(dict(enumerate(receipt.acceptance_histogram)))
        by_source.update(receipt.draft_tokens_by_source)
    await deployment.scraped()
    positions = Counter(await deployment.figures(position, "position"))
    positions.subtract(before[0])
    sources = Counter(await deployment.figures(source, "source"))
    sources.subtract(before[1])
    assert +sources == +by_source
    # A cycle that accepted n tokens accepted one at each of the positions 0 to n - 1.
    expected = [
        sum(count for length, count in by_length.items() if length > index)
        for index in range(max(by_length))
    ]
    assert sorted((+positions).values(), reverse=True) == [n for n in expected if n]


def dashboard_queries() -> list[str]:
    """Return every expression of the dashboard, with its variables filled in."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    found = [target["expr"] for panel in panels for target in panel.get("targets", ())]
    return [query.replace("$__rate_interval", "1m").replace("$model", ".*") for query in found]


async def test_every_query_of_the_dashboard_is_answered(deployment: Deployment) -> None:
    await deployment.scraped()
    metadata = await deployment.ask_prometheus("metadata")
    known = {re.sub("_total$", "", name) for name in metadata}
    queries = dashboard_queries()
    assert len(queries) > 20
    for query in queries:
        for name in re.findall(r"outrider_\w+", query):
            assert re.sub("_(total|bucket|sum|count)$", "", name) in known, name
        data = await deployment.ask_prometheus("query", query=query)
        assert data["result"] or RARE.search(query), f"no value: {query}"


async def test_the_rules_are_loaded_and_every_worker_is_scraped(deployment: Deployment) -> None:
    (group,) = (await deployment.ask_prometheus("rules"))["groups"]
    assert {rule["health"] for rule in group["rules"]} <= {"ok", "unknown"}
    ready = Counter(worker.role for worker in await deployment.workers())

    async def all_up() -> bool:
        up = await deployment.figures("sum by (job) (up)", "job")
        return up == {"orchestrator": 1, "openai": 1, **ready}

    await until(all_up, timeout_s=60)
