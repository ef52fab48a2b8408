"""The measurement as a page of Markdown with charts."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.peers.contestants import BASES, OUTRIDER, TRANSFORMERS, VLLM, Contestant
from bench.peers.figures import PARTS, Figures, Spread

PAGE = "benchmarks.md"
SPEED_CHART, LATENCY_CHART = "benchmarks-speed.png", "benchmarks-latency.png"
COLOURS = {OUTRIDER: "tab:blue", TRANSFORMERS: "tab:gray", VLLM: "tab:orange"}
Results = Mapping[tuple[Contestant, int], Figures]

EXPLANATION = """\
All contestants decode greedily (temperature 0) with the same weights in bfloat16 and the same
prompts, given as token ids; the end-of-text id ends an answer. They take turns: in every repeat
each answers all questions once per number of streams, and another one begins. An engine that has
no turn waits without work, or is stopped where it would not rest. Every engine uses all usable
cores. Nothing of a prompt is cached from an earlier turn.

- **tokens/s** counts all streams, from the first prompt sent to the last token: prompts included.
  Median of the repeats, extremes in parentheses. **x target-only** and **x vLLM** compare with
  the same repeat.
- **TTFT** runs from sending a prompt to its first token (median), **TPOT** is the time per
  token behind the first pass, of each answer.
- **tokens per pass** leaves out the first pass of an answer and counts passes without a draft;
  **passes saved** is the share of target-only decoding's passes that were not needed.
- **memory** is the peak of resident memory of the processes that the contestant needs; pages that
  processes share count in each. Outrider and vLLM keep room for 1 GiB of KV cache.
- **equal** counts answers whose ids are those of Outrider's target-only decoding. Outrider's own
  are equal by design; other engines add in another order, so near ties may fall otherwise.
"""
HEADERS = (
    "contestant",
    "tokens/s",
    "x target-only",
    "x vLLM",
    "TTFT ms",
    "TPOT p50 ms",
    "TPOT p99 ms",
    "tokens per pass",
    "passes saved",
    "tokens/s per core",
    "cores busy",
    "memory MiB",
    "equal",
)


@dataclass(frozen=True, slots=True)
class Setting:
    """What was measured, in words for the page."""

    title: str
    """How much, of what, on what, when."""
    facts: Mapping[str, str]
    """Versions and choices by driver."""
    notes: Sequence[str]
    """What did not take part, and why."""
    command: str


def row(contestant: Contestant, found: Figures) -> tuple[str, ...]:
    """Return a line of a table, under ``HEADERS``."""
    ratios = [found.ratios.get(base.name) for base in BASES]
    return (
        contestant.name,
        _spread(found.tokens_per_s, 1),
        *(_spread(ratio, 2) if ratio else "" for ratio in ratios),
        f"{found.ttft_ms.median:.0f}",
        f"{found.tpot_p50_ms:.1f}",
        f"{found.tpot_p99_ms:.1f}",
        f"{found.mean_acceptance_length:.2f}",
        f"{found.passes_saved:.0%}",
        f"{found.tokens_per_s_per_core:.1f}",
        f"{found.cores_busy:.2f}",
        f"{found.peak_rss_bytes / 2**20:.0f}",
        f"{found.num_equal} of {found.num_answers}",
    )


def write_page(results: Results, setting: Setting, folder: Path) -> Path:
    """Write the page and its charts; return the page's path."""
    lines = ["# Side by side", "", setting.title, "", EXPLANATION]
    for num_streams in stream_counts(results):
        some = of_streams(results, num_streams)
        lines += [f"## {_streams(num_streams).capitalize()}", ""]
        lines += _table(HEADERS, [row(each, found) for each, found in some.items()])
    lines += [f"![Tokens per second]({SPEED_CHART})", "", f"![Latency]({LATENCY_CHART})", ""]
    lines += ["## Where Outrider's time goes", "", "Shares of a request's time, by its receipt."]
    lines += ["`draft` is what the loop waited for drafts; `rest` is the orchestrator's own.", ""]
    lines += _table(("contestant", "streams", *PARTS, "rest"), _shares(results))
    lines += ["## What took part", ""]
    lines += [f"- `{name}`: {fact}" for name, fact in setting.facts.items()]
    lines += [f"- {note}" for note in setting.notes]
    lines += ["", f"Made by `{setting.command}`.", ""]
    folder.mkdir(parents=True, exist_ok=True)
    _draw_speed(results, folder / SPEED_CHART)
    _draw_latency(results, folder / LATENCY_CHART)
    path = folder / PAGE
    path.write_text("\n".join(lines))
    return path


def stream_counts(results: Results) -> list[int]:
    """Return the numbers of streams that were measured."""
    return sorted({num_streams for _, num_streams in results})


def of_streams(results: Results, num_streams: int) -> dict[Contestant, Figures]:
    """Return the figures at one number of streams."""
    return {each: found for (each, num), found in results.items() if num == num_streams}


def _spread(spread: Spread, digits: int) -> str:
    return f"{spread.median:.{digits}f} ({spread.low:.{digits}f} to {spread.high:.{digits}f})"


def _streams(num_streams: int) -> str:
    return f"{num_streams} stream{'s' if num_streams > 1 else ''}"


def _shares(results: Results) -> list[tuple[str, ...]]:
    return [
        (each.name, str(num), *(f"{found.shares[part]:.0%}" for part in (*PARTS, "rest")))
        for (each, num), found in results.items()
        if found.shares
    ]


def _table(headers: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [headers, ["---"] * len(headers), *rows]
    return [*(f"| {' | '.join(line)} |" for line in lines), ""]


def _draw_speed(results: Results, path: Path) -> None:
    # Imported here: drawing takes a package that nothing else of the measurement needs.
    from matplotlib.figure import Figure

    counts = stream_counts(results)
    figure = Figure(figsize=(4.2 * len(counts) + 2.5, 4.5), layout="constrained")
    panels = figure.subplots(1, len(counts), squeeze=False)[0]
    for panel, num_streams in zip(panels, counts, strict=True):
        some = of_streams(results, num_streams)
        speeds = [found.tokens_per_s for found in some.values()]
        panel.barh(
            [each.name for each in some],
            [speed.median for speed in speeds],
            xerr=[
                [speed.median - speed.low for speed in speeds],
                [speed.high - speed.median for speed in speeds],
            ],
            color=[COLOURS[each.engine] for each in some],
        )
        panel.invert_yaxis()
        panel.set_title(_streams(num_streams))
        panel.set_xlabel("tokens/s, extremes")
    figure.savefig(path, dpi=110)


def _draw_latency(results: Results, path: Path) -> None:
    from matplotlib.figure import Figure

    counts = stream_counts(results)
    figure = Figure(figsize=(4.2 * len(counts) + 2.5, 4.5), layout="constrained")
    panels = figure.subplots(1, len(counts), squeeze=False)[0]
    for panel, num_streams in zip(panels, counts, strict=True):
        some = of_streams(results, num_streams)
        names = [each.name for each in some]
        colours = [COLOURS[each.engine] for each in some]
        panel.barh(names, [found.tpot_p50_ms for found in some.values()], color=colours)
        panel.plot([found.tpot_p99_ms for found in some.values()], names, "k|", label="p99")
        panel.invert_yaxis()
        panel.set_title(_streams(num_streams))
        panel.set_xlabel("ms per token, median")
        panel.legend()
    figure.savefig(path, dpi=110)
