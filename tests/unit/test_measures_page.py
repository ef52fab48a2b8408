"""docs/measures.md names every measure, and none that is not there."""

import re
from pathlib import Path

from prometheus_client import CollectorRegistry
from starlette.applications import Starlette

from openai_svc.observed import Observed
from orchestrator.admission import Admission
from orchestrator.metrics import OrchestratorMetrics, PolicyState, PresentState, ReceiptState
from orchestrator.monitor import MonitorMetrics
from orchestrator.policy_in_force import PolicyInForce
from orchestrator.receipt_store import ReceiptStore
from orchestrator.workers import WorkerPool
from outrider.policy import policy_of_flags
from outrider.worker_metrics import WorkerMetrics
from tests.unit.test_worker_metrics import StandingEngine

PAGE = Path(__file__).parents[2] / "docs" / "measures.md"


def test_the_page_lists_what_is_served():
    registry = CollectorRegistry()
    OrchestratorMetrics(registry)
    MonitorMetrics(registry)
    registry.register(PresentState(WorkerPool([]), Admission(1, 1)))
    registry.register(PolicyState(PolicyInForce(policy_of_flags())))
    registry.register(ReceiptState(ReceiptStore(1, 1.0), None))
    registry.register(WorkerMetrics(lambda: 0, StandingEngine()))
    Observed(Starlette(), registry)
    served = {
        family.name.removeprefix("outrider_") + ("_total" if family.type == "counter" else "")
        for family in registry.collect()
    }
    rows = re.findall(r"^\| (`[^|]+) \|", PAGE.read_text(), flags=re.MULTILINE)
    listed = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert listed == served | {"gpu_utilization_perc"}
