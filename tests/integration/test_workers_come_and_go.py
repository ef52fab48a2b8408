"""Workers behind a name join, drain and leave while requests run."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack

import pytest

from orchestrator import discovery
from outrider.client import Client, Output, generate_request
from outrider.sampling import SamplingParams
from outrider.v1 import generation_pb2 as pb
from tests.cluster import DRAFTER_NAMES, VERIFIER_NAMES, cluster, serving
from tests.statistical.law import TableLaw
from tests.table_model import VOCAB_SIZE, table_drafter, table_verifier

pytestmark = pytest.mark.integration

LAW = TableLaw.random(VOCAB_SIZE, seed=1)
SAMPLING = SamplingParams(temperature=1.0, seed=5, max_tokens=20)


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch) -> dict[str, set[str]]:
    """What each host name resolves to; a test changes it."""
    known: dict[str, set[str]] = {"verifiers": set(), "drafters": set()}

    async def resolve(host: str, port: int) -> set[str]:
        return set(known[host])

    monkeypatch.setattr(discovery, "_resolve", resolve)
    monkeypatch.setattr(discovery.addresses_of, "__defaults__", (0.01,))
    return known


async def until(client: Client, fits: Callable[[dict[str, str]], bool]) -> dict[str, str]:
    """Wait until the workers' states by address are as wanted."""
    async with asyncio.timeout(10):
        while True:
            info = await client.stub.GetServerInfo(pb.GetServerInfoRequest())
            states = {worker.address: worker.state for worker in info.workers}
            if fits(states):
                return states
            await asyncio.sleep(0.02)


async def ask(client: Client) -> Output:
    request = generate_request([1, 2], SAMPLING, sources=["model"], num_draft_tokens=3)
    return await client.generate(request, timeout_s=20)


async def test_joining_and_leaving(names: dict[str, set[str]]) -> None:
    async with AsyncExitStack() as exits:

        async def start(kind: str) -> tuple[str, Callable[[], object]]:
            stack = await exits.enter_async_context(AsyncExitStack())
            service = (
                serving(VERIFIER_NAMES, table_verifier(LAW))
                if kind == "verifiers"
                else serving(DRAFTER_NAMES, table_drafter(LAW))
            )
            address = await stack.enter_async_context(service)
            names[kind].add(address)
            return address, stack.aclose

        first, stop_first = await start("verifiers")
        running = await exits.enter_async_context(
            cluster(
                verifiers=[],
                verifier_addresses=["dns:///verifiers:1"],
                drafter_addresses=["dns:///drafters:1"],
                draft_wait_ms=5_000,
                lookup_on_miss=False,
            )
        )
        client = running.client
        alone = await ask(client)
        assert alone.complete.receipt.num_draft_tokens == 0
        drafter, stop_drafter = await start("drafters")
        await until(client, lambda states: states.get(drafter) == "ready")
        drafted = await ask(client)
        assert drafted.complete.receipt.num_draft_tokens > 0
        assert drafted.token_ids == alone.token_ids
        second, _ = await start("verifiers")
        await until(client, lambda states: states.get(second) == "ready")

        streams = [asyncio.create_task(ask(client)) for _ in range(12)]
        await asyncio.sleep(0.02)
        names["verifiers"].discard(first)
        names["drafters"].discard(drafter)
        # No longer named, but they answer: what runs there goes on.
        assert [each.token_ids for each in await asyncio.gather(*streams)] == [alone.token_ids] * 12
        stopping = asyncio.gather(stop_first(), stop_drafter())
        later = [asyncio.create_task(ask(client)) for _ in range(12)]
        assert [each.token_ids for each in await asyncio.gather(*later)] == [alone.token_ids] * 12
        await stopping
        states = await until(client, lambda states: set(states) == {second})
        assert states == {second: "ready"}
        assert (await ask(client)).token_ids == alone.token_ids


async def test_requests_may_name_a_source_that_nobody_offers_yet(
    names: dict[str, set[str]],
) -> None:
    async with cluster(
        verifiers=[table_verifier(LAW)], drafter_addresses=["dns:///drafters:1"]
    ) as running:
        output = await ask(running.client)
    assert output.complete.completion_tokens == 20
    reasons = {each.reason for each in output.complete.receipt.fallbacks}
    assert "no_drafter" in reasons
