"""The page and its data, from receipts of a real run over workers that sleep."""

import csv
import json
import lzma
import re
from pathlib import Path

import pytest

from outrider.packet.correctness import Evidence
from outrider.packet.finished import Finished, finished
from outrider.packet.packet import Packet
from outrider.packet.page import render, write_packet
from outrider.receipts import read_receipts
from tests.unit.packet.made import control, drafted

RECEIPTS = Path(__file__).with_name("receipts.jsonl.xz")
CLASSES = {"interactive", "copying", "batch", "creative"}


@pytest.fixture(scope="module")
def packet(tmp_path_factory: pytest.TempPathFactory) -> Packet:
    """What the load generator left, with a part of it as the baseline."""
    log = tmp_path_factory.mktemp("log") / "receipts.jsonl"
    log.write_bytes(lzma.decompress(RECEIPTS.read_bytes()))
    receipts = list(read_receipts(log))
    requests = finished(receipts)
    load = [Evidence("load", "every request is completed", "pass", "none", "all")]
    baseline = [each for each in requests if each.is_control]
    return Packet(receipts, requests, load, baseline=baseline, load=load, facts={"load": "some"})


def test_the_page_needs_nothing_else(packet: Packet, tmp_path: Path) -> None:
    page = write_packet(packet, tmp_path)
    text = page.read_text(encoding="utf-8")
    assert page.stat().st_size < 2_000_000
    assert text.count("<svg") == text.count("</svg>") == 3
    loaded = re.findall(r"(?:src|href)=[\"']?(?!#)([^\"'>\s]+)|url\((?!#)([^)]+)\)", text)
    assert not [each for each in loaded if not each[0].startswith("#")]
    assert "<script" not in text
    assert all(name in text for name in CLASSES)


def test_the_data_are_the_page(packet: Packet, tmp_path: Path) -> None:
    write_packet(packet, tmp_path)
    told = json.loads((tmp_path / "data" / "packet.json").read_text())
    assert told["num_requests"] == len(packet.requests) == 72
    assert set(told["eligibility"]["classes"]) == CLASSES
    assert set(told["eligibility"]["enabled"]) == {"interactive", "copying", "batch"}
    with (tmp_path / "data" / "requests.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 72
    tokens = sum(int(row["num_output_tokens"]) for row in rows)
    assert tokens == sum(each.receipt.num_output_tokens for each in packet.requests)
    for name in ("matrix.csv", "latency.csv"):
        assert len((tmp_path / "data" / name).read_text().splitlines()) > 10


def test_real_receipts_add_up(packet: Packet) -> None:
    for name, each in packet.classes.items():
        if each.saving is not None:
            later_ms = sum(one.later_ms for one in packet.groups[name].decided)
            assert each.saving.net_ms == pytest.approx(each.saving.alone_ms - later_ms)
    creative = packet.classes["creative"]
    assert (creative.num_passes_saved, dict(creative.decisions)) == (0, {"policy_target_only": 10})
    assert packet.classes["interactive"].verdict == "gains"


def test_what_clients_send_is_text_and_no_markup() -> None:
    evil = "<script>alert(1)</script>"
    metadata = {"metadata": {"language": evil}, "policy": {"workload_class": "<b>x</b>"}}
    requests: list[Finished] = [drafted(**metadata), control(**metadata), drafted()]
    text = render(Packet([], requests, []))
    assert evil not in text
    assert "<b>x" not in text
    assert "&lt;script&gt;" in text


def test_a_packet_without_control_draws_what_there_is() -> None:
    text = render(Packet([], [drafted()], []))
    assert "there is no control to compare with" in text
