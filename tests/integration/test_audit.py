"""An audit passes a sound pair, and finds each of three planted faults."""

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import pytest

from outrider.audit.asking import Asker, Prompt
from outrider.audit.audit import Audit
from outrider.audit.plan import Plan, Sizes, Tolerances
from outrider.audit.reference import Law, Reference, Rows, whole_rows
from outrider.audit.view import View
from tests.cluster import cluster
from tests.planted.faults import FAULTS
from tests.statistical.law import TableLaw
from tests.table_model import NO_TOKEN, VOCAB_SIZE, table_drafter, table_verifier

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

TARGET = TableLaw.random(VOCAB_SIZE, seed=31, scale=1.0)
DRAFT = TableLaw(TARGET.logits + TableLaw.random(VOCAB_SIZE, seed=32, scale=0.7).logits)
SIZES = Sizes(
    num_prompts=6, max_tokens=16, num_samples=16, num_programs=0, num_sums=0, task_tokens=0
)
PLAN = Plan(SIZES, Tolerances(max_kl_excess=0.2, max_ngram_excess=0.2), ("model",), num_streams=32)


@dataclass(frozen=True, slots=True)
class TableReference:
    """The table itself."""

    description: str = "the table"

    async def read(self, prompt_ids: Sequence[int], output_ids: Sequence[int], law: Law) -> Rows:
        text = [NO_TOKEN, *prompt_ids, *output_ids]
        ends = range(len(prompt_ids), len(text) - 1)
        contexts = np.array([(text[end - 1], text[end]) for end in ends])
        return whole_rows(TARGET.rows(contexts), output_ids, law)


async def audit(
    fault: str = "", reference: Reference | None = None, plan: Plan = PLAN
) -> dict[str, View]:
    with FAULTS[fault]() if fault else nullcontext():
        async with cluster(
            verifiers=[table_verifier(TARGET, gather_s=0.002)],
            drafters=[table_drafter(DRAFT, gather_s=0.002)],
            draft_wait_ms=10_000,
        ) as running:
            prompts = [
                Prompt(i, f"class-{i % 2}", (i % VOCAB_SIZE, i // 2))
                for i in range(SIZES.num_prompts)
            ]
            asker = Asker(running.client, "test", 30.0, lambda: None)
            made = Audit(
                asker, plan, prompts, reference or TableReference(), True, {}, lambda *_: None
            )
            return {view.name: view for view in await made.run()}


@pytest.mark.parametrize("fault", ["", *FAULTS])
async def test_x(fault: str) -> None:
    t = time.time()
    views = await audit(fault)
    for v in views.values():
        print(v.name, v.verdict, v.finding)
        for tb in v.tables:
            for r in tb.rows:
                print("   ", r)
    print(time.time() - t)
