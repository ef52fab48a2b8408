"""Charts as SVG, to stand in a page."""

import io
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from outrider.packet.finished import Finished, Groups
from outrider.packet.latency import BASELINE, CONTROL, DECIDED, MEASURES, values_of
from outrider.packet.matrix import Worth
from outrider.sampling import AcceptanceRule

if TYPE_CHECKING:
    from outrider.walkthrough import Comparison

COLORS = {DECIDED: "#1b6ca8", CONTROL: "#d9822b", BASELINE: "#8a8f98"}
GOOD, BAD, DARK, LIGHT = "#2e8b57", "#c0504d", "#22272e", "#d5d9de"
PARTS = {
    "verify_ms": ("verifying longer", "#b3403a"),
    "draft_ms": ("waiting for drafts", "#d98b87"),
    "scheduling_ms": ("scheduling", "#8a8f98"),
}
STYLE: Any = {
    "svg.fonttype": "none",  # text stays text: it can be read, searched and scaled
    "svg.hashsalt": "outrider",  # the same figures give the same file
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.edgecolor": DARK,
    "axes.labelcolor": DARK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": LIGHT,
    "grid.linewidth": 0.6,
    "axes.axisbelow": True,
    "legend.frameon": False,
}


def latency_chart(groups: Mapping[str, Groups], baseline: Mapping[str, Groups]) -> str:
    """Every completed request by its arrival, and how latencies are spread, class by class."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(11, 1.0 + 2.0 * max(len(groups), 1)), layout="constrained")
        axes = figure.subplots(max(len(groups), 1), 3, squeeze=False)
        began_s = min(
            (each.receipt.arrived_at_s for both in groups.values() for each in _all(both)),
            default=0.0,
        )
        whole, later = MEASURES["whole request, ms"], MEASURES["a later token, ms"]
        for row, (name, both) in zip(axes, groups.items(), strict=False):
            sides = {DECIDED: both.decided, CONTROL: both.control}
            for side, requests in sides.items():
                arrivals = [each.receipt.arrived_at_s - began_s for each in requests]
                times = [each.receipt.total_ms / 1e3 for each in requests]
                filled = COLORS[side] if side == DECIDED else "none"
                row[0].scatter(
                    arrivals, times, s=14, facecolors=filled, edgecolors=COLORS[side], label=side
                )
            if name in baseline:
                sides[BASELINE] = _all(baseline[name])
            for side, requests in sides.items():
                _spread(row[1], requests, whole, side, scale=1e-3)
                _spread(row[2], requests, later, side)
            row[0].set_ylabel(f"{name}\nwhole request, s")
            row[0].set_ylim(bottom=0)
            row[1].set_ylabel("share of requests")
            for axis in row[1:]:
                axis.set_ylim(0, 1.02)
        for axis, label in zip(
            axes[-1], ("arrival, s", "whole request, s", "a later token, ms"), strict=True
        ):
            axis.set_xlabel(label)
        handles, labels = axes[0][1].get_legend_handles_labels()
        if handles:
            figure.legend(handles, labels, loc="outside upper center", ncols=3)
        return _svg(figure, "Latency of completed requests by class")


def gain_chart(found: Mapping[str, Worth]) -> str:
    """The gain of every class, with its interval."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.4, 0.9 + 0.4 * max(len(found), 1)), layout="constrained")
        axis = figure.subplots()
        axis.axvline(1, color=DARK, linewidth=1)
        for place, each in enumerate(found.values()):
            if each.gain is not None:
                low, high = each.gain.value - each.gain.low, each.gain.high - each.gain.value
                color = {"gains": GOOD, "loses": BAD}.get(each.gain.verdict, COLORS[BASELINE])
                axis.errorbar(
                    each.gain.value, place, xerr=[[low], [high]], fmt="o", color=color, capsize=3
                )
        axis.set_yticks(range(len(found)), list(found))
        axis.set_ylim(len(found) - 0.5, -0.5)
        axis.set_xlabel("tokens per second over the control, 95 % interval")
        return _svg(figure, "Gain by class")


def saving_chart(found: Mapping[str, Worth]) -> str:
    """What was saved and what it cost, as shares of what the control would have taken."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.4, 1.3 + 0.5 * max(len(found), 1)), layout="constrained")
        axis = figure.subplots()
        axis.axvline(0, color=DARK, linewidth=1)
        shown = {name: each.saving for name, each in found.items() if each.saving is not None}
        for place, each in enumerate(shown.values()):
            share = 1 / each.alone_ms if each.alone_ms else 0.0
            axis.barh(place, each.saved_ms * share, color=GOOD, height=0.55)
            left, right = 0.0, each.saved_ms * share
            for part, (_, color) in PARTS.items():
                width = getattr(each, part) * share
                if width >= 0:  # a cost: drawn to the left of zero, one behind the other
                    left -= width
                    axis.barh(place, width, left=left, color=color, height=0.55)
                else:  # even this was saved
                    axis.barh(place, -width, left=right, color=color, height=0.55, alpha=0.5)
                    right -= width
            axis.plot(each.net_share, place, marker="D", color=DARK, markersize=5)
        axis.set_yticks(range(len(shown)), list(shown))
        axis.set_ylim(max(len(shown), 1) - 0.5, -0.5)
        axis.set_xlabel("share of the time without drafts")
        axis.xaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
        for label, color in (("passes saved", GOOD), *PARTS.values()):
            axis.barh([0], [0], color=color, label=label)
        axis.plot([], [], marker="D", color=DARK, linestyle="none", label="net")
        figure.legend(*axis.get_legend_handles_labels(), loc="outside upper center", ncols=3)
        return _svg(figure, "Time saved and spent by class")


def fixture_chart(found: "Mapping[AcceptanceRule, Comparison]") -> str:
    """Deviations of frequencies from exact probabilities, in parts of what is tolerated."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(5.4, 2.6), layout="constrained")
        axes = figure.subplots(1, max(len(found), 1), squeeze=False, sharey=True)[0]
        for axis, (rule, one) in zip(axes, found.items(), strict=False):
            tolerance = one.tolerance.ravel()
            places = np.arange(tolerance.size)
            for side, frequencies in ((DECIDED, one.speculative), (CONTROL, one.target_only)):
                parts = (frequencies - one.exact).ravel() / np.maximum(tolerance, 1e-12)
                label = "with drafts" if side == DECIDED else "target-only"
                axis.plot(places, parts, ".", color=COLORS[side], label=label)
            for limit in (-1, 1):
                axis.axhline(limit, color=BAD, linewidth=1)
            axis.set_title(rule.value, fontsize=9)
            axis.set_xlabel("position and token")
            axis.set_ylim(-1.2, 1.2)
        axes[0].set_ylabel("deviation / tolerance")
        if found:
            handles = axes[0].get_legend_handles_labels()
            figure.legend(*handles, loc="outside upper center", ncols=2)
        return _svg(figure, "Frequencies of the fixture")


def _spread(
    axis: Any,
    requests: Sequence[Finished],
    measure: Callable[[Finished], float | None],
    side: str,
    *,
    scale: float = 1.0,
) -> None:
    values = np.array(values_of(requests, measure)) * scale
    if values.size:
        style = "--" if side == BASELINE else "-"
        axis.ecdf(values, color=COLORS[side], label=side, linestyle=style)


def _all(both: Groups) -> tuple[Finished, ...]:
    return (*both.decided, *both.control)


def _svg(figure: Figure, title: str) -> str:
    """Return the picture as an element; it scales with the page."""
    written = io.StringIO()
    figure.savefig(written, format="svg", metadata={"Date": None, "Title": title})
    text = written.getvalue()
    return text[text.index("<svg") :]
