"""Every line of the log is one JSON object, whoever wrote it."""

import io
import json
import logging
from collections.abc import Iterator

import pytest
import structlog

from outrider.serving.logs import configure_logging


@pytest.fixture
def stream() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    configure_logging("kennel", level="info", stream=stream)
    yield stream
    structlog.reset_defaults()
    root.handlers[:] = handlers
    root.setLevel(level)


def lines(stream: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_an_event_has_its_facts_context_level_and_service(stream):
    with structlog.contextvars.bound_contextvars(request_id="r-1"):
        structlog.get_logger().info("dog_barked", num_barks=3)
    [line] = lines(stream)
    assert line.pop("timestamp").endswith("Z")
    assert line == {
        "event": "dog_barked",
        "level": "info",
        "service": "kennel",
        "request_id": "r-1",
        "num_barks": 3,
    }


def test_a_librarys_line_has_the_same_shape(stream):
    logging.getLogger("some.library").warning("disk %s is full", "a")
    [line] = lines(stream)
    assert (line["event"], line["level"], line["service"]) == (
        "disk a is full",
        "warning",
        "kennel",
    )


def test_lines_below_the_level_are_dropped(stream):
    structlog.get_logger().debug("dog_dreamt")
    logging.getLogger("some.library").debug("noise")
    assert lines(stream) == []


def test_a_traceback_is_one_field_without_local_variables(stream):
    prompt = "tell" + "nobody"
    try:
        [][len(prompt)]
    except IndexError:
        structlog.get_logger().exception("dog_lost")
    [line] = lines(stream)
    assert "IndexError" in line["exception"]
    assert "tellnobody" not in stream.getvalue()
