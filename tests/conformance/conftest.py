"""A verifier and a drafter with toy models, and the engines behind them."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from drafter_svc.__main__ import open_drafter
from drafter_svc.settings import DrafterSettings
from outrider import hosting
from outrider.engine import Engine
from tests.cluster import DRAFTER_NAMES, VERIFIER_NAMES, serving
from tests.toy import save_toy
from verifier_svc.__main__ import open_verifier
from verifier_svc.settings import VerifierSettings

FREED_S = 5.0


@dataclass(frozen=True)
class Worker:
    """A running worker and its engine."""

    address: str
    engine: Engine

    async def freed(self, num_blocks_used: int = 0) -> None:
        """Wait until no more than these blocks have an owner, then check the books."""
        async with asyncio.timeout(FREED_S):
            while self.engine.stats().num_blocks_used > num_blocks_used:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        self.engine.check_integrity()


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The target: two random layers, a byte-level tokenizer, a context of 128."""
    folder = tmp_path_factory.mktemp("conformance") / "toy"
    return save_toy(folder, seed=1, scale=0.25, max_context_length=128)


@pytest.fixture(scope="session")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same shape and tokenizer with other weights."""
    folder = tmp_path_factory.mktemp("conformance") / "other"
    return save_toy(folder, seed=2, scale=0.25, max_context_length=128)


@pytest.fixture(scope="module")
def engines() -> Iterator[list[Engine]]:
    """Every engine that a worker of the module starts, in order."""
    started: list[Engine] = []

    class Recorded(Engine):
        def start(self) -> None:
            super().start()
            started.append(self)

    before = hosting.Engine
    hosting.Engine = Recorded  # type: ignore[misc]
    yield started
    hosting.Engine = before  # type: ignore[misc]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def verifier(toy: Path, engines: list[Engine]) -> AsyncIterator[Worker]:
    """A verifier of the toy target in float32."""
    settings = VerifierSettings(model=str(toy), dtype="float32", kv_cache_tokens=2048)
    async with serving(VERIFIER_NAMES, lambda: open_verifier(settings)) as address:
        yield Worker(address, engines[-1])


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def drafter(toy: Path, engines: list[Engine]) -> AsyncIterator[Worker]:
    """A drafter with the same weights."""
    settings = DrafterSettings(model=str(toy), dtype="float32", kv_cache_tokens=2048)
    async with serving(DRAFTER_NAMES, lambda: open_drafter(settings)) as address:
        yield Worker(address, engines[-1])
