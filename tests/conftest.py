"""Fixtures that more than one kind of test needs."""

import logging
from collections.abc import Iterator

import pytest
import structlog
from structlog.testing import LogCapture


@pytest.fixture
def log_events() -> Iterator[list[dict[str, object]]]:
    """The log events of the test, with their bound context."""
    capture = LogCapture()
    before = structlog.get_config()
    structlog.configure(processors=[structlog.contextvars.merge_contextvars, capture])
    yield capture.entries
    structlog.configure(**before)


@pytest.fixture(autouse=True, scope="session")
def _quiet_log() -> None:
    """Keep the services' own log lines out of test reports; warnings and errors stay."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING))
