"""What the monitor watches, what it makes again and when, and what raises the alarm.

In place of the replays' sequences stands a generator that commits given tokens, one a cycle.
"""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from prometheus_client import CollectorRegistry

from orchestrator import monitor as module
from orchestrator.admission import Admission
from orchestrator.generation import Generation
from orchestrator.monitor import MAX_QUEUED, Monitor, MonitorMetrics, Replay
from orchestrator.request import Request
from orchestrator.sequence import End, FinishReason
from orchestrator.workers import WorkerPool
from outrider.errors import Unavailable
from outrider.identity import Numerics
from outrider.sampling import AcceptanceRule, SamplingParams
from tests.unit.orchestrator.test_admission_of_requests import make_target, request

OUTPUT = (3, 4, 5)
GREEDY = SamplingParams(temperature=0.0)


def make(share: float = 1.0, **changed: Any) -> tuple[Monitor, CollectorRegistry]:
    registry = CollectorRegistry()
    monitor = Monitor(
        WorkerPool([]),
        Admission(2, 4),
        MonitorMetrics(registry),
        share=share,
        alarm_evidence=9.0,
        **changed,
    )
    return monitor, registry


def ended(wanted: Request, output: tuple[int, ...] = OUTPUT, num_drafted: int = 4) -> Generation:
    """A client's request that has finished."""
    generation = Generation(wanted, WorkerPool([]), lambda: None, lambda _: None)
    generation.sequence.token_ids.extend(output)
    generation.sequence.end = End(FinishReason.LENGTH)
    generation.stats.num_draft_tokens = num_drafted
    return generation


def watched(sampling: SamplingParams = GREEDY, row_invariant: bool = True) -> Request:
    target = make_target(numerics=Numerics(row_invariant=row_invariant))
    return replace(request(sampling=sampling, target=target), is_watched=True)


def value(registry: CollectorRegistry, name: str, **labels: str) -> float:
    found = registry.get_sample_value(f"outrider_quality_{name}", {"model": "toy", **labels})
    return 0.0 if found is None else found


@contextmanager
def saying(
    monkeypatch: pytest.MonkeyPatch, *token_ids: int, margin: float = 1.0, error: Any = None
) -> Iterator[list[Request]]:
    """Let replays say these tokens; yields what was asked for."""
    asked: list[Request] = []

    class Scripted:
        def __init__(self, wanted: Request, *_: Any) -> None:
            asked.append(wanted)
            self.sequence = SimpleNamespace(output_ids=[])
            self.num_prompt = len(wanted.prompt_ids)

        async def run(self, admission: Admission) -> AsyncGenerator[Any, None]:
            for at, token_id in enumerate(token_ids):
                if error is not None:
                    raise error
                self.sequence.output_ids.append(token_id)
                yield SimpleNamespace(
                    base_position=self.num_prompt + at,
                    delivery=SimpleNamespace(tokens=[SimpleNamespace(token_id=token_id)]),
                    verdict=SimpleNamespace(margin=margin),
                )

    monkeypatch.setattr(module, "Generation", Scripted)
    yield asked


async def replayed(monitor: Monitor) -> None:
    """Run the monitor until its queue is empty."""
    running = asyncio.create_task(monitor.run())
    for _ in range(100):
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


def test_a_share_of_what_drafts_is_watched():
    chances = iter([0.005, 0.5, 0.009])
    monitor, _ = make(share=0.01, chance=lambda: next(chances))
    assert [monitor.watch(request()).is_watched for _ in range(3)] == [True, False, True]
    off, _ = make(share=0.0, chance=lambda: 0.0)
    assert not off.watch(request()).is_watched
    plan = replace(request().plan, decision="off")
    every, _ = make(share=1.0)
    assert not every.watch(replace(request(), plan=plan)).is_watched


def test_a_replay_is_the_same_request_without_drafts():
    wanted = replace(watched(SamplingParams(temperature=0.7, seed=5, logprobs=2)), priority=3)
    again = Replay.of(ended(wanted)).request
    assert (again.prompt_ids, again.mode) == (wanted.prompt_ids, wanted.mode)
    assert again.sampling == replace(wanted.sampling, logprobs=None)
    assert not again.plan.speculates
    assert again.priority == -100
    assert not again.is_watched
    assert again.cache_salt not in ("", wanted.cache_salt)


async def test_an_equal_replay_is_counted(monkeypatch):
    monitor, registry = make()
    with saying(monkeypatch, *OUTPUT) as asked:
        monitor.consider(ended(watched()))
        await replayed(monitor)
    assert len(asked) == 1
    assert value(registry, "replays_total", result="equal") == 1
    assert value(registry, "diff_sampled_total") == value(registry, "alarm") == 0


@pytest.mark.parametrize("said", [(3, 6, 5), (3, 4), (3, 4, 5, 6)])
async def test_another_output_raises_the_alarm(monkeypatch, said):
    monitor, registry = make()
    with saying(monkeypatch, *said):
        monitor.consider(ended(watched()))
        await replayed(monitor)
    assert value(registry, "replays_total", result="different") == 1
    assert value(registry, "diff_sampled_total") == value(registry, "alarm") == 1


@pytest.mark.parametrize(
    ("row_invariant", "margin", "result"),
    [(False, 0.05, "tied"), (False, 0.2, "different"), (True, 0.0, "different")],
)
async def test_a_tie_is_none_where_numerics_are_invariant(
    monkeypatch, row_invariant, margin, result
):
    monitor, registry = make()
    with saying(monkeypatch, 3, 6, 5, margin=margin):
        monitor.consider(ended(watched(row_invariant=row_invariant)))
        await replayed(monitor)
    assert value(registry, "replays_total", result=result) == 1
    assert value(registry, "alarm") == (result == "different")


def test_sampled_ties_are_wider_as_the_temperature_falls():
    sampled = SamplingParams(temperature=0.5)
    assert Replay.of(ended(watched(sampled, row_invariant=False))).tie == 0.2


async def test_what_has_no_output_of_its_own_is_not_made_again(monkeypatch):
    monitor, _ = make()
    in_ratio = watched(SamplingParams())
    plan = replace(in_ratio.plan, rule=AcceptanceRule.BLOCK)
    unfinished = ended(watched())
    unfinished.sequence.end = None
    with saying(monkeypatch, *OUTPUT) as asked:
        monitor.consider(ended(replace(in_ratio, plan=plan)))
        monitor.consider(ended(watched(), num_drafted=0))
        monitor.consider(ended(replace(watched(), is_watched=False)))
        monitor.consider(unfinished)
        await replayed(monitor)
    assert not asked


def test_a_full_queue_drops():
    monitor, registry = make()
    for _ in range(MAX_QUEUED + 3):
        monitor.consider(ended(watched()))
    assert value(registry, "replays_total", result="dropped") == 3


async def test_replays_stand_still_while_clients_wait(monkeypatch):
    monitor, registry = make()
    with saying(monkeypatch, *OUTPUT) as asked:
        async with monitor.admission.slot(), monitor.admission.slot():
            monitor.consider(ended(watched()))
            running = asyncio.create_task(monitor.run())
            await asyncio.sleep(3 * module.POLL_S)
            assert not asked
        await asyncio.sleep(3 * module.POLL_S)
        running.cancel()
    assert value(registry, "replays_total", result="equal") == 1


async def test_a_replay_is_given_up_in_the_end(monkeypatch):
    times = iter(range(0, 10_000, 50))
    monitor, registry = make(clock=lambda: next(times))
    with saying(monkeypatch, *OUTPUT) as asked:
        async with monitor.admission.slot(), monitor.admission.slot():
            monitor.consider(ended(watched()))
            running = asyncio.create_task(monitor.run())
            await asyncio.sleep(4 * module.POLL_S)
            running.cancel()
    assert not asked
    assert value(registry, "replays_total", result="abandoned") == 1


@pytest.mark.parametrize("error", [Unavailable("no verifier"), RuntimeError("a fault of ours")])
async def test_a_replay_that_fails_does_not_end_the_monitor(monkeypatch, error):
    monitor, registry = make()
    with saying(monkeypatch, *OUTPUT, error=error):
        monitor.consider(ended(watched()))
        monitor.consider(ended(watched()))
        await replayed(monitor)
    assert value(registry, "replays_total", result="failed") == 2
    assert value(registry, "alarm") == 0


def test_tokens_off_their_law_raise_the_alarm():
    monitor, registry = make()
    generation = ended(watched(SamplingParams()))
    rng = np.random.default_rng(0)
    generation.rank_uniforms = rng.random(2000).tolist()
    monitor.consider(generation)
    assert value(registry, "tokens_tested_total", rule="coupled") == 2000
    assert value(registry, "evidence", rule="coupled") < 4
    assert value(registry, "alarm") == 0
    generation.rank_uniforms = (rng.random(2000) ** 1.3).tolist()
    monitor.consider(generation)
    assert value(registry, "evidence", rule="coupled") > 9
    assert value(registry, "alarm") == 1
