"""The packet as a folder: one page that needs nothing else, and the data behind it."""

import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

import outrider
from outrider.packet.charts import fixture_chart, gain_chart, latency_chart, saving_chart
from outrider.packet.latency import BASELINE, CONTROL, DECIDED, QUANTILES, Line
from outrider.packet.packet import Packet, as_json, is_enabled

PAGE, DATA = "index.html", "data"
TEMPLATE = "page.html.j2"


def write_packet(packet: Packet, folder: Path) -> Path:
    """Write page and data; return the page. Raises: OSError."""
    data = folder / DATA
    data.mkdir(parents=True, exist_ok=True)
    (data / "packet.json").write_text(json.dumps(as_json(packet), indent=1) + "\n")
    _write_csv(data / "requests.csv", *_requests(packet))
    _write_csv(data / "matrix.csv", *_matrix(packet))
    _write_csv(data / "latency.csv", *_latency(packet))
    page = folder / PAGE
    page.write_text(render(packet), encoding="utf-8")
    return page


def render(packet: Packet) -> str:
    """Return the page."""
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"seconds": _seconds, "percent": _percent, "counts": _counts}
    charts = {
        "latency": latency_chart(packet.groups, packet.baseline_groups),
        "gain": gain_chart(packet.classes),
        "saving": saving_chart(packet.classes),
        "fixture": fixture_chart(packet.fixture) if packet.fixture else "",
    }
    return environment.get_template(TEMPLATE).render(
        packet=packet,
        charts={name: Markup(chart) for name, chart in charts.items()},  # our own, not given
        is_enabled=is_enabled,
        sides=(DECIDED, CONTROL, BASELINE) if packet.baseline else (DECIDED, CONTROL),
        latency=_by_place(packet),
        version=outrider.__version__,
        made_at=datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    )


def _by_place(packet: Packet) -> dict[tuple[str, str], dict[str, Line]]:
    """Return the lines of latency by class and measure, then by group."""
    found: dict[tuple[str, str], dict[str, Line]] = {}
    for line in packet.latency:
        found.setdefault((line.class_name, line.measure), {})[line.group] = line
    return found


def _seconds(milliseconds: float) -> str:
    return f"{milliseconds / 1e3:+.1f} s"


def _percent(share: float) -> str:
    return f"{share:.0%}"


def _counts(counts: Mapping[str, int]) -> str:
    """Return names by how often, the number left out where there is but one name."""
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    if len(ordered) == 1:
        return ordered[0][0]
    return ", ".join(f"{name} {count}" for name, count in ordered) or "none"


Rows = tuple[Sequence[str], Iterable[Sequence[object]]]


def _requests(packet: Packet) -> Rows:
    names = sorted({name for each in packet.requests for name in each.traits})
    headers = (
        "request_id",
        "arrived_at_s",
        "class",
        "decision",
        *names,
        "prompt_tokens",
        "num_output_tokens",
        "num_cycles",
        "num_spec_steps",
        "num_draft_tokens",
        "num_accepted_draft_tokens",
        "num_passes_saved",
        "queue_ms",
        "draft_ms",
        "verify_ms",
        "prefill_ms",
        "network_ms",
        "ttft_ms",
        "total_ms",
    )
    counts = headers[headers.index("num_output_tokens") :]
    rows = [
        (
            each.receipt.request_id,
            f"{each.receipt.arrived_at_s:.3f}",
            each.class_name,
            each.decision,
            *(each.traits.get(name, "") for name in names),
            each.receipt.num_prompt_tokens,
            *(_short(getattr(each.receipt, name)) for name in counts),
        )
        for each in packet.requests
    ]
    return headers, rows


def _matrix(packet: Packet) -> Rows:
    headers = (
        "trait",
        "value",
        "class",
        "requests",
        "control",
        "decisions",
        "draft_share",
        "mean_acceptance_length",
        "gain",
        "gain_low",
        "gain_high",
        "verdict",
    )
    rows = []
    for cell in packet.matrix:
        worth, gain = cell.worth, cell.worth.gain
        rows.append(
            (
                cell.trait,
                cell.value,
                cell.class_name,
                worth.num_decided,
                worth.num_control,
                _counts(worth.decisions),
                _short(worth.draft_share),
                _short(worth.mean_acceptance_length),
                *(("", "", "") if gain is None else map(_short, (gain.value, gain.low, gain.high))),
                worth.verdict,
            )
        )
    return headers, rows


def _latency(packet: Packet) -> Rows:
    headers = ("class", "group", "measure", "requests", *(f"p{100 * q:g}" for q in QUANTILES))
    rows = [
        (line.class_name, line.group, line.measure, line.num_requests, *map(_short, line.quantiles))
        for line in packet.latency
    ]
    return headers, rows


def _short(value: object) -> object:
    return f"{value:.4g}" if isinstance(value, float) else value


def _write_csv(path: Path, headers: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(headers)
        writer.writerows(rows)
