"""Receipts are kept within bounds, and written without ever holding anybody up."""

import os
import threading
from pathlib import Path

import pytest

from orchestrator.receipt_log import ReceiptLog
from orchestrator.receipt_store import ReceiptStore
from outrider.errors import NotFound


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


def test_the_oldest_go_first():
    store = ReceiptStore(max_receipts=2, max_age_s=10)
    for name in "abc":
        store.add(name, f"receipt of {name}")
    assert store.get("c") == ("receipt of c",)
    assert store.get("b") == ("receipt of b",)
    with pytest.raises(NotFound, match="no receipt of 'a' is there; the last 2 are kept for 10 s"):
        store.get("a")
    assert len(store) == 2


def test_none_is_kept_for_longer_than_told():
    clock = Clock()
    store = ReceiptStore(max_receipts=9, max_age_s=10, clock=clock)
    store.add("a", 1)
    clock.now += 10
    assert store.get("a") == (1,)
    store.add("b", 2)
    clock.now += 0.1
    assert store.get("b") == (2,)
    with pytest.raises(NotFound):
        store.get("a")


def test_receipts_of_one_id_stand_together():
    store = ReceiptStore(max_receipts=2, max_age_s=10)
    store.add("a", "first")
    store.add("b", "other")
    store.add("a", "second")
    assert store.get("a") == ("first", "second")
    store.add("c", "one more")
    assert store.get("a") == ("first", "second"), "it ended after b"
    for number in range(200):
        store.add("a", number)
    assert store.get("a") == tuple(range(72, 200))


def test_with_no_room_none_is_kept():
    store = ReceiptStore(max_receipts=0, max_age_s=10)
    store.add("a", 1)
    with pytest.raises(NotFound):
        store.get("a")


def opened(path: Path, **more: object) -> ReceiptLog:
    log = ReceiptLog(path, str, **more)  # type: ignore[arg-type]
    log.open()
    return log


def test_lines_are_appended(tmp_path: Path):
    path = tmp_path / "receipts.jsonl"
    path.write_text("before\n")
    log = opened(path)
    for number in range(1000):
        log.add(number)
    log.close()
    assert path.read_text().split("\n") == ["before", *map(str, range(1000)), ""]
    assert (log.num_written, sum(log.dropped.values())) == (1000, 0)


def test_a_log_that_was_moved_is_opened_anew(tmp_path: Path):
    path = tmp_path / "receipts.jsonl"
    log = opened(path)
    log.add("one")
    until(lambda: log.num_written == 1)
    path.rename(tmp_path / "old")
    log.add("two")
    until(lambda: log.num_written == 2)
    log.reopen()
    log.add("three")
    log.close()
    assert (tmp_path / "old").read_text() == "one\ntwo\n"
    assert path.read_text() == "three\n"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a full disk")
def test_a_full_disk_costs_receipts_and_nothing_else():
    log = opened(Path("/dev/full"))
    for number in range(5):
        log.add(number)
    log.close()
    assert log.num_written == 0
    assert log.dropped == {"not_written": 5}


def test_a_torn_line_stays_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    write, left = os.write, [3]

    def tight(file: int, data: bytes) -> int:
        """A disk with room for three bytes, and for more later."""
        if not left[0]:
            left[0] = 1000
            raise OSError(28, "No space left on device")
        num = write(file, data[: left[0]])
        left[0] -= num
        return num

    log = opened(tmp_path / "log")
    monkeypatch.setattr("orchestrator.receipt_log.os.write", tight)
    log.add("torn line")
    log.add("whole line")
    log.close()
    monkeypatch.undo()
    assert (tmp_path / "log").read_text() == "tor\nwhole line\n"
    assert (log.num_written, log.dropped) == (1, {"not_written": 1})


def test_a_slow_disk_holds_nobody_up(tmp_path: Path):
    gate = threading.Event()

    def slow(receipt: object) -> str:
        gate.wait()
        return str(receipt)

    log = ReceiptLog(tmp_path / "log", slow, max_waiting=3)
    log.open()
    for number in range(10):
        log.add(number)
    assert 6 <= log.dropped["queue_full"] <= 7  # one may be in the writer's hand
    gate.set()
    log.close()
    assert log.num_written == 10 - log.dropped["queue_full"]


def test_a_log_that_cannot_be_written_is_told_at_once(tmp_path: Path):
    with pytest.raises(OSError, match=r"--receipt-log .*none/log: No such file"):
        opened(tmp_path / "none" / "log")


def until(is_so: object) -> None:
    for _ in range(500):
        if is_so():  # type: ignore[operator]
            return
        threading.Event().wait(0.01)
    raise AssertionError("it did not come to this")
