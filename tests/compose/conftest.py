"""The deployment that all tests of this folder share. They run only where `-m compose` asks."""

import tempfile
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import pytest_asyncio

from outrider.checkpoints import prepare
from tests.compose.deployment import Deployment, make_stranger
from tests.compose.requests import Answers, reference

MAX_TOKENS = 24
LOG = Path("build/logs/compose.log")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave this folder out unless it is asked for: it needs a Docker engine."""
    expression = config.option.markexpr.split()
    return None if expression[:1] == ["compose"] else True


def keep(logs: str) -> None:
    """Leave what the containers printed beside the logs of other runs."""
    LOG.parent.mkdir(parents=True, exist_ok=True)
    LOG.write_text(logs)


@dataclass(frozen=True, slots=True)
class Stranger:
    """A draft model whose tokenizer has two tokens swapped."""

    folder: Path
    tokens: tuple[str, ...]


@pytest.fixture(scope="session")
def stranger() -> Iterator[Stranger]:
    with tempfile.TemporaryDirectory(prefix="outrider-") as folder:
        path = Path(folder) / "stranger"
        tokens = make_stranger(prepare().draft, path)
        yield Stranger(path, tuple(tokens))


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def answers() -> Answers:
    """What one process without drafts answers to the questions."""
    return await reference(MAX_TOKENS)


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def deployment(stranger: Stranger, answers: Answers) -> AsyncIterator[Deployment]:
    """Containers of one drafter and one verifier at first; removed whatever happens."""
    running = Deployment(models=prepare().target.parent, stranger=stranger.folder)
    try:
        await running.scale(verifier=1, drafter=1)
        yield running
    finally:
        try:
            keep(await running.logs())
        finally:
            await running.down()
