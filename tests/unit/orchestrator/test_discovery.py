"""Names are asked again and again; addresses come and go, a failing resolver takes none away."""

import asyncio
from collections.abc import Sequence

import pytest

from orchestrator import discovery
from orchestrator.discovery import addresses_of, is_name


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("127.0.0.1:50052", False),
        ("verifier:50052", False),
        ("unix:/tmp/socket", False),
        ("dns:///drafter:50053", True),
        ("dns:drafter.default.svc:50053", True),
        ("dns://10.0.0.2/drafter:50053", True),
    ],
)
def test_which_targets_are_names(target, name):
    assert is_name(target) is name


async def test_an_address_is_itself_and_never_changes():
    assert [found async for found in addresses_of("a:1")] == [{"a:1"}]


async def follow(monkeypatch, answers: Sequence[set[str] | OSError], count: int) -> list[set[str]]:
    """Return the first changes that are seen while a resolver gives these answers."""
    left = list(answers)

    async def resolve(host: str, port: int) -> set[str]:
        answer = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(answer, OSError):
            raise answer
        return {f"{each}:{port}" for each in answer}

    monkeypatch.setattr(discovery, "_resolve", resolve)
    seen: list[set[str]] = []
    async with asyncio.timeout(5):
        async for found in addresses_of("dns:///drafter:7", every_s=0.001):
            seen.append(found)
            if len(seen) == count:
                break
    return seen


async def test_every_change_is_told_once(monkeypatch):
    answers = [{"a"}, {"a"}, {"a", "b"}, {"a", "b"}, {"b"}]
    assert await follow(monkeypatch, answers, 3) == [{"a:7"}, {"a:7", "b:7"}, {"b:7"}]


async def test_a_resolver_that_fails_takes_nothing_away(monkeypatch, log_events):
    failure = OSError("no such name")
    answers = [failure, failure, {"a"}, failure, failure, {"a", "b"}]
    assert await follow(monkeypatch, answers, 2) == [{"a:7"}, {"a:7", "b:7"}]
    assert [event["event"] for event in log_events] == ["name_not_resolved"] * 2


async def test_a_real_name_resolves():
    async with asyncio.timeout(5):
        async for found in addresses_of("dns:///localhost:7"):
            assert "127.0.0.1:7" in found or "[::1]:7" in found
            break
