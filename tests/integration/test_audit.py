"""An audit passes a sound pair and finds three planted faults; so does the monitor."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
import torch
from prometheus_client.parser import text_string_to_metric_families

from outrider.audit.asking import Asker, Prompt
from outrider.audit.audit import Audit
from outrider.audit.plan import Plan, Sizes, Tolerances
from outrider.audit.reference import Law, PromptReference, Reference, Rows, whole_rows
from outrider.audit.report import Audited, write_report
from outrider.audit.view import Verdict, View
from outrider.client import generate_request
from outrider.sampling import AcceptanceRule, SamplingParams
from tests.cluster import Cluster, cluster
from tests.planted.faults import q_temperature, residual, stale_kv
from tests.scrape import free_port, scrape
from tests.statistical.law import TableLaw
from tests.table_model import NO_TOKEN, VOCAB_SIZE, table_drafter, table_verifier

pytestmark = [
    pytest.mark.integration,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(180),
]

TARGET = TableLaw.random(VOCAB_SIZE, seed=31, scale=1.0)
DRAFT = TableLaw(TARGET.logits + TableLaw.random(VOCAB_SIZE, seed=32, scale=1.0).logits)
ALARM = 4.0  # of evidence: so few tokens cannot come to more under a fault
GATHER_S = 0.004  # passes of many rows cost little more than of one
NUM_PROMPTS = 8
SIZES = Sizes(NUM_PROMPTS, max_tokens=16, num_samples=12, num_programs=0, num_sums=0, task_tokens=0)
# Divergences of so few samples say little, and a table's passes cost less than asking a drafter.
PLAN = Plan(
    sizes=SIZES,
    tolerances=Tolerances(max_kl_excess=0.2, max_ngram_excess=0.2, max_slowdown=1e6),
    sources=("model",),
    num_streams=32,
    seed=10**6,
)
PROMPTS = [Prompt(i, f"class-{i % 2}", (i % VOCAB_SIZE, 1 + i // 2)) for i in range(NUM_PROMPTS)]


@dataclass(frozen=True, slots=True)
class TableReference:
    """The table itself."""

    description: str = "the table"

    async def read(self, prompt_ids: Sequence[int], output_ids: Sequence[int], law: Law) -> Rows:
        text = [NO_TOKEN, *prompt_ids, *output_ids]
        ends = range(len(prompt_ids), len(text) - 1)
        contexts = np.array([(text[end - 1], text[end]) for end in ends])
        return whole_rows(TARGET.rows(contexts), output_ids, law)


@dataclass(frozen=True, slots=True)
class Watched:
    """Running services whose monitor watches every request."""

    services: Cluster
    metrics_port: int

    async def measures(self) -> dict[str, float]:
        """Return the monitor's measures by name, rule and result."""
        found = {}
        for family in text_string_to_metric_families(await scrape(self.metrics_port)):
            for name, labels, value, *_ in family.samples:
                if name.startswith("outrider_quality_") and not name.endswith("_created"):
                    which = labels.get("rule", labels.get("result", ""))
                    found[f"{name.removeprefix('outrider_quality_')} {which}".strip()] = value
        return found


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Rows are short: threads only wait for one another."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest_asyncio.fixture(loop_scope="module")
async def watched() -> AsyncIterator[Watched]:
    port = free_port()
    async with cluster(
        verifiers=[table_verifier(TARGET, gather_s=GATHER_S)],
        drafters=[table_drafter(DRAFT, gather_s=GATHER_S)],
        draft_wait_ms=10_000,
        replay_share=1.0,
        alarm_evidence=ALARM,
        metrics_port=port,
    ) as services:
        yield Watched(services, port)


async def audited(
    services: Cluster, reference: Reference | None = None, *, num_samples: int = 12
) -> dict[str, View]:
    audit = Audit(
        asker=Asker(services.client, "", "test", 60.0, lambda: None),
        plan=replace(PLAN, sizes=replace(SIZES, num_samples=num_samples)),
        prompts=PROMPTS,
        reference=reference or TableReference(),
        row_invariant=True,
        tasks={},
        told=lambda what, num_steps: None,
    )
    return {view.name: view for view in await audit.run()}


def verdicts(views: dict[str, View]) -> dict[str, Verdict]:
    return {name: view.verdict for name, view in views.items()}


async def test_a_sound_pair_passes(watched: Watched, tmp_path: Path) -> None:
    views = await audited(watched.services, num_samples=4)
    assert set(verdicts(views).values()) == {Verdict.PASS}, views
    assert len(views) == 6
    report = Audited({"target": "table"}, PLAN, list(views.values()), {})
    write_report(report, tmp_path)
    told = json.loads((tmp_path / "audit.json").read_text())
    assert told["verdict"] == "pass"
    law = told["views"]["token-law"]["figures"]["ways"]
    assert {"target-only", "model, coupled", "model, rejection", "model, block"} == law.keys()
    assert law["model, block"]["num_tokens"] == NUM_PROMPTS * 4 * 16
    assert (tmp_path / "audit.md").read_text().count("| pass |") == 6
    assert (tmp_path / "audit.png").stat().st_size > 10_000


async def test_the_verifier_can_read_outputs_itself(watched: Watched) -> None:
    asker = Asker(watched.services.client, "", "read", 60.0, lambda: None)
    ids = [1, 5, 0, 2, 2, 3]
    for law in (Law(), Law(temperature=0.7, top_k=3)):
        by_prompt = await PromptReference(asker.client, "", 60.0).read([4, 1], ids, law)
        by_table = await TableReference().read([4, 1], ids, law)
        own = np.take_along_axis(by_table.probs, by_table.outcomes[:, None], 1)
        told = np.take_along_axis(by_prompt.probs, by_prompt.outcomes[:, None], 1)
        np.testing.assert_allclose(told, own, atol=1e-6)
        np.testing.assert_allclose(by_prompt.lead, by_table.lead, atol=1e-5)


async def test_wrong_temperature_on_q(watched: Watched) -> None:
    with q_temperature():
        views = await audited(watched.services)
    found = verdicts(views)
    assert found["token-law"] is Verdict.FAIL
    assert "model, rejection" in views["token-law"].finding
    assert "model, block" in views["token-law"].finding
    assert found["greedy"] is found["seeded"] is Verdict.PASS, "these do not use q"
    measures = await watched.measures()
    assert measures["evidence block"] > ALARM
    assert measures["evidence coupled"] < ALARM
    assert measures["alarm"] == 1


async def test_a_residual_that_is_not_corrected(watched: Watched) -> None:
    with residual():
        views = await audited(watched.services, num_samples=8)
    assert verdicts(views)["token-law"] is Verdict.FAIL
    assert "model, rejection" in views["token-law"].finding
    measures = await watched.measures()
    assert measures["evidence rejection"] > ALARM
    assert measures["alarm"] == 1


async def test_stale_kv_after_a_rejection(watched: Watched) -> None:
    with stale_kv():
        views = await audited(watched.services, num_samples=3)
        await replays(watched, 1)
    found = verdicts(views)
    assert found["greedy"] is found["seeded"] is found["token-law"] is Verdict.FAIL
    assert "differ from the target's own" in views["greedy"].finding
    measures = await watched.measures()
    assert measures["diff_sampled_total"] > 0
    assert measures["alarm"] == 1


async def replays(watched: Watched, num: int) -> dict[str, float]:
    """Wait until so many outputs were made again."""
    while True:
        measures = await watched.measures()
        if sum(n for name, n in measures.items() if name.startswith("replays_total")) >= num:
            return measures
        await asyncio.sleep(0.05)


async def test_a_sound_pair_raises_no_alarm(watched: Watched) -> None:
    async def ask(index: int, rule: AcceptanceRule, temperature: float) -> None:
        params = SamplingParams(temperature=temperature, seed=index, max_tokens=24)
        request = generate_request([index % 6, 1], params, sources=["model"], acceptance_rule=rule)
        await watched.services.client.generate(request, timeout_s=30)

    await asyncio.gather(*(ask(i, AcceptanceRule.COUPLED, 0.0) for i in range(3)))
    await asyncio.gather(*(ask(i, AcceptanceRule.COUPLED, 1.0) for i in range(8)))
    await asyncio.gather(*(ask(i, AcceptanceRule.BLOCK, 1.0) for i in range(24)))
    measures = await replays(watched, 11)
    assert measures["replays_total equal"] == 11, "those in RATIO are not made again"
    assert measures["tokens_tested_total coupled"] == 8 * 24
    assert measures["tokens_tested_total block"] == 24 * 24
    assert max(measures["evidence block"], measures["evidence coupled"]) < ALARM
    assert measures["alarm"] == 0
    assert "diff_sampled_total" not in measures
