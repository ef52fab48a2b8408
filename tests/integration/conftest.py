"""What the tests of running services share: model folders, and a log that is cheap to write."""

import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from tests.toy import save_toy

# Wide enough logits that a greedy output does not fall into a loop after a few tokens.
SCALE = 0.25


@pytest.fixture(scope="session", autouse=True)
def plain_log() -> Iterator[None]:
    """Warnings in plain words: tracebacks with all their locals stop the event loop for seconds."""
    before = structlog.get_config()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(key_order=["event"]),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
    )
    yield
    structlog.configure(**before)


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all models of the session."""
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="session")
def toy(models: Path) -> Path:
    """The target of most tests: two random layers, a byte-level tokenizer."""
    return save_toy(models / "toy", seed=1, scale=SCALE)


@pytest.fixture(scope="session")
def other(models: Path) -> Path:
    """A draft model that is often wrong: the toy with other weights."""
    return save_toy(models / "other", seed=2, scale=SCALE)
