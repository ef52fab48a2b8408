"""The views of an audit as panels of one picture."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from outrider.audit.plan import TARGET_ONLY
from outrider.audit.view import Verdict, View

if TYPE_CHECKING:
    from matplotlib.axes import Axes

COLOURS = {Verdict.PASS: "tab:green", Verdict.FAIL: "tab:red", Verdict.NOT_RUN: "tab:gray"}
PANEL_INCHES = (5.4, 3.8)
NUM_COLUMNS = 3


def draw(views: Sequence[View], path: Path) -> None:
    """Draw every view that has something to show, and the verdicts of all."""
    from matplotlib.figure import Figure

    panels = [
        (title, panel, view.data)
        for view in views
        if view.data
        for title, panel in PANELS.get(view.name, ())
    ]
    num_rows = -(-(1 + len(panels)) // NUM_COLUMNS)
    size = (PANEL_INCHES[0] * NUM_COLUMNS, PANEL_INCHES[1] * num_rows)
    figure = Figure(figsize=size, layout="constrained")
    grid = figure.subplots(num_rows, NUM_COLUMNS, squeeze=False).ravel()
    _verdicts(grid[0], views)
    for axes, (title, panel, data) in zip(grid[1:], panels, strict=False):
        axes.set_title(title, fontsize=10)
        panel(axes, data)
    for axes in grid[1 + len(panels) :]:
        axes.set_axis_off()
    figure.savefig(path, dpi=100)


def _verdicts(axes: "Axes", views: Sequence[View]) -> None:
    names = [view.name for view in views]
    axes.barh(names, [1.0] * len(views), color=[COLOURS[view.verdict] for view in views])
    for place, view in enumerate(views):
        axes.text(0.02, place, view.verdict.value, va="center", color="white", weight="bold")
    axes.invert_yaxis()
    axes.set_xticks([])


def _token_law(axes: "Axes", data: dict[str, Any]) -> None:
    """The distribution of rank uniforms less the uniform one, and where it would be noticed."""
    for way, found in data["ways"].items():
        counts = np.array(found["uniforms_histogram"])
        edges = np.linspace(0, 1, len(counts) + 1)
        cumulated = np.concatenate([[0], counts.cumsum()]) / counts.sum()
        line = axes.plot(edges, cumulated - edges, label=way)[0]
        if way == TARGET_ONLY.name:
            line.set_color("black")
    smallest = min(found["num_tokens"] for found in data["ways"].values())
    band = np.sqrt(np.log(2 / 1e-4) / (2 * smallest))
    axes.axhspan(-band, band, color="tab:gray", alpha=0.15)
    axes.set_xlabel("rank uniform")
    axes.set_ylabel("share of tokens below, less that")
    axes.legend(fontsize=7)


def _divergence(axes: "Axes", data: dict[str, Any]) -> None:
    found = data["excesses"]
    names = [f"{each['way']}\n{each['kind'].partition(',')[0]}" for each in found]
    values = [each["excess"]["value"] / each["limit"] for each in found]
    lows = [each["excess"]["low"] / each["limit"] for each in found]
    highs = [each["excess"]["high"] / each["limit"] for each in found]
    errors = [np.subtract(values, lows), np.subtract(highs, values)]
    axes.errorbar(values, names, xerr=errors, fmt="o", capsize=3)
    axes.axvline(1.0, color="tab:red", linestyle="--")
    axes.axvline(0.0, color="black", linewidth=0.5)
    axes.set_xlabel("excess over target-only against itself, share of the limit")
    axes.tick_params(axis="y", labelsize=7)


def _acceptance(axes: "Axes", data: dict[str, Any]) -> None:
    for way, found in data.items():
        kept = found["by_position"]
        places = range(1, len(kept) + 1)
        values = [each["value"] for each in kept]
        lows = np.subtract(values, [each["low"] for each in kept])
        highs = np.subtract([each["high"] for each in kept], values)
        axes.errorbar(places, values, yerr=[lows, highs], marker="o", capsize=2, label=way)
    axes.set_xlabel("position in the draft")
    axes.set_ylabel("share of drafts kept up to it")
    axes.set_ylim(0, 1)
    axes.legend(fontsize=7)


def _classes(axes: "Axes", data: dict[str, Any]) -> None:
    classes = sorted({each for found in data.values() for each in found["by_class"]})
    height = 0.8 / max(len(data), 1)
    for index, (way, found) in enumerate(data.items()):
        lengths = [
            found["by_class"].get(each, {}).get("mean_acceptance_length", np.nan)
            for each in classes
        ]
        places = np.arange(len(classes)) + index * height
        axes.barh(places, np.subtract(lengths, 1), height, left=1, label=way)
    axes.set_yticks(np.arange(len(classes)) + 0.4 - height / 2, classes, fontsize=7)
    axes.set_xlabel("tokens a verified draft")
    axes.legend(fontsize=7)


def _latency(axes: "Axes", data: dict[str, Any]) -> None:
    for way, found in data.items():
        times = np.sort([each for each in found["tpot_ms_each"] if np.isfinite(each)])
        axes.plot(times, np.arange(1, len(times) + 1) / len(times), drawstyle="steps", label=way)
    axes.set_xlabel("ms a later token")
    axes.set_ylabel("share of requests")
    axes.legend(fontsize=7)


def _first_tokens(axes: "Axes", data: dict[str, Any]) -> None:
    axes.boxplot(
        [found["ttft_ms_each"] for found in data.values()],
        tick_labels=list(data),
        orientation="horizontal",
        whis=(1, 99),
    )
    axes.set_xlabel("ms to the first token")
    axes.tick_params(axis="y", labelsize=7)


def _accuracy(axes: "Axes", data: dict[str, Any]) -> None:
    for offset, key, colour in ((-0.15, "target_only", "black"), (0.15, "speculative", "tab:blue")):
        values = [arm[key]["value"] for arm in data["arms"]]
        lows = np.subtract(values, [arm[key]["low"] for arm in data["arms"]])
        highs = np.subtract([arm[key]["high"] for arm in data["arms"]], values)
        places = np.arange(len(values)) + offset
        axes.errorbar(
            values,
            places,
            xerr=[lows, highs],
            fmt="o",
            color=colour,
            capsize=3,
            label=key.replace("_", "-"),
        )
    axes.set_yticks(
        range(len(data["arms"])),
        [f"{arm['mode']}\n{arm['way']}" for arm in data["arms"]],
        fontsize=7,
    )
    axes.set_xlim(-0.02, 1)
    axes.set_xlabel("share of tasks solved")
    axes.legend(fontsize=7)


Panel = Callable[["Axes", dict[str, Any]], None]
PANELS: dict[str, Sequence[tuple[str, Panel]]] = {
    "token-law": [("Token law", _token_law)],
    "divergence": [("Divergence of samples", _divergence)],
    "humaneval": [("Programs solved", _accuracy)],
    "arithmetic": [("Sums solved", _accuracy)],
    "acceptance": [("Acceptance by position", _acceptance), ("Acceptance by class", _classes)],
    "latency": [("Later tokens", _latency), ("First tokens", _first_tokens)],
}
