"""Fixtures that more than one kind of test needs."""

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
