"""Outrider, transformers and vLLM on the same weights and prompts, taking turns in one run.

``python -m bench.side_by_side``: SmolLM2-135M-Instruct, greedy, EOS honoured, questions spread
over all categories. Figures are written after every repeat, so that a run that is cut short has
still measured something. vLLM takes part where ``make bench-peers`` has installed it.
"""

import argparse
import asyncio
import shlex
import signal
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from transformers import AutoTokenizer

from bench.peers.contestants import (
    BASES,
    CONTESTANTS,
    DEFAULT,
    OUTRIDER,
    PLAIN,
    TARGET_ONLY,
    VLLM,
    VLLM_PLAIN,
    VLLM_PYTHON,
    Contestant,
    commands,
    contestant,
    rotated,
)
from bench.peers.figures import Figures, figures
from bench.peers.page import Setting, of_streams, stream_counts, write_page
from bench.peers.plain_draft import write_plain_draft
from bench.peers.process import Peer, PeerError
from bench.peers.turn import Played, Turn
from bench.report import num_cores, print_table, processor, write_report
from outrider.checkpoints import prepare
from outrider.questions import load_questions

DOCS = Path("docs")
PLAIN_DRAFT = Path("build/models/smollm2-135m-instruct-plain-draft")
NUM_WARM_UP = 4  # questions before the first repeat; draft lengths are learned from them
WARM_UP_TOKENS = 48
SHORT_HEADERS = ("contestant", "tok/s", "x alone", "x vLLM", "TTFT", "TPOT", "MAL", "equal")
INTERRUPTED = 130  # the exit status of shells after Ctrl-C


@dataclass(slots=True)
class SideBySide:
    """A measurement under way."""

    options: argparse.Namespace
    prompts: list[list[int]]
    peers: dict[str, Peer]
    contestants: list[Contestant]
    notes: list[str] = field(default_factory=list)
    written: list[Path] = field(default_factory=list)
    turns: dict[tuple[Contestant, int], list[Played]] = field(
        default_factory=lambda: defaultdict(list)
    )

    def matches(self, repeat: int) -> list[tuple[Contestant, int]]:
        """Return who plays with how many streams, in the order of a repeat."""
        return [
            (each, num_streams)
            for num_streams in self.options.streams
            for each in rotated(self.contestants, repeat)
            if each.plays(num_streams)
        ]

    async def play(self, one: Contestant, num_streams: int, repeat: int | None) -> None:
        """Let a contestant play; one that fails is left out from now on. None warms up."""
        if one not in self.contestants:
            return
        warms_up = repeat is None
        turn = Turn(
            mode=one.mode,
            prompts=self.prompts[:NUM_WARM_UP] if warms_up else self.prompts,
            num_tokens=min(self.options.tokens, WARM_UP_TOKENS)
            if warms_up
            else self.options.tokens,
            num_streams=num_streams,
            salt=f"{one.name} {num_streams} {repeat}",
        )
        try:
            played = await self.peers[one.peer].play(turn)
        except PeerError as error:
            self.notes.append(f"{one.name} was left out: {error}")
            self.contestants.remove(one)
            return
        if not warms_up:
            self.turns[one, num_streams].append(played)

    async def run(self) -> None:
        """Warm up, then play all repeats, writing after each."""
        options = self.options
        warm_up = self.matches(0)
        columns = (*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, TextColumn("{task.fields[now]}")) as progress:
            total = len(warm_up) * (1 + options.repeats)
            task = progress.add_task("turns", total=total, now="")
            for one, num_streams in warm_up:
                progress.update(task, now=f"warming up: {one.name}, {num_streams}")
                await self.play(one, num_streams, None)
                progress.advance(task)
            for peer in self.peers.values():
                await peer.settle()  # again: some only begin to spin with their first work
            for repeat in range(options.repeats):
                for one, num_streams in self.matches(repeat):
                    progress.update(task, now=f"{one.name}, {num_streams}")
                    await self.play(one, num_streams, repeat)
                    progress.advance(task)
                self.write(repeat + 1)
        self.show()

    @property
    def results(self) -> dict[tuple[Contestant, int], Figures]:
        """The figures so far, in the order in which contestants were named."""
        return {
            (each, num): figures(self.turns, each, num, num_cores())
            for num in self.options.streams
            for each in self.options.contestants
            if self.turns.get((each, num))
        }

    def write(self, num_repeats: int) -> None:
        """Write the JSON file, and the page where it is wanted."""
        results = self.results
        details: dict[str, object] = {
            "questions": len(self.prompts),
            "max_tokens": self.options.tokens,
            "repeats": num_repeats,
            "cores": num_cores(),
            "processor": processor(),
            "facts": {name: peer.facts for name, peer in self.peers.items()},
            "idle_cores": {name: peer.idle_cores for name, peer in self.peers.items()},
            "notes": self.notes,
            "results": [
                {"contestant": each.name, "streams": num, **asdict(found)}
                for (each, num), found in results.items()
            ],
        }
        self.written = [write_report("side_by_side", summary(results), details)]
        if self.options.write_docs and results:
            self.written.append(write_page(results, self.setting(num_repeats), DOCS))

    def setting(self, num_repeats: int) -> Setting:
        """Return what the page says about the run."""
        title = (
            f"SmolLM2-135M-Instruct, {len(self.prompts)} questions of all categories, at most "
            f"{self.options.tokens} new tokens, {num_repeats} repeats; {processor()}, "
            f"{num_cores()} cores, {datetime.now(UTC):%Y-%m-%d}."
        )
        facts = {
            name: ", ".join(f"{key} {value}" for key, value in peer.facts.items())
            + f"; {peer.idle_cores:.1%} of a core while idle"
            + (", stopped between turns" if peer.is_stopped_between_turns else "")
            for name, peer in self.peers.items()
        }
        command = shlex.join(["python", "-m", "bench.side_by_side", *sys.argv[1:]])
        return Setting(title, facts, self.notes, command)

    def show(self) -> None:
        """Print the tables."""
        results = self.results
        for num in stream_counts(results):
            rows = [short_row(each, found) for each, found in of_streams(results, num).items()]
            print_table(f"{num} at once", SHORT_HEADERS, rows)
        for note in self.notes:
            print(note)
        print(*self.written, sep="\n")


def summary(results: dict[tuple[Contestant, int], Figures]) -> dict[str, float]:
    """Return the figures that are looked at first: speed, and speed over the bases'."""
    found = headlines(results)
    for (each, num), one in results.items():
        found[f"{each.name}, {num}: tokens_per_s"] = one.tokens_per_s.median
        for base in BASES:
            if each != base and base.name in one.ratios:
                found[f"{each.name}, {num}: over {base.name}"] = one.ratios[base.name].median
    return found


def headlines(results: dict[tuple[Contestant, int], Figures]) -> dict[str, float]:
    """Return the ratios that aims are set for, of those who took part."""

    def ratio(one: Contestant, base: Contestant, num_streams: int) -> float | None:
        found = results.get((one, num_streams))
        return found.ratios[base.name].median if found and base.name in found.ratios else None

    ratios = {
        "speedup_vs_target_only": ratio(DEFAULT, TARGET_ONLY, 1),
        "speedup_vs_vllm_plain": ratio(DEFAULT, VLLM_PLAIN, 1),
        "target_only_vs_vllm_1": ratio(TARGET_ONLY, VLLM_PLAIN, 1),
        "target_only_vs_vllm_8": ratio(TARGET_ONLY, VLLM_PLAIN, 8),
    }
    speculating = [
        found.tokens_per_s.median
        for (each, num), found in results.items()
        if num == 1 and each.engine != OUTRIDER and each.mode != PLAIN
    ]
    if speculating and (DEFAULT, 1) in results:
        ours = results[DEFAULT, 1].tokens_per_s.median
        ratios["speedup_vs_best_peer"] = ours / max(speculating)
    crowded = [
        ratio(each, TARGET_ONLY, 16)
        for each, num in results
        if num == 16 and each.engine == OUTRIDER
    ]
    ours_crowded = [each for each in crowded if each is not None]
    if ours_crowded:
        ratios["worst_ratio_16_streams"] = min(ours_crowded)
    return {name: value for name, value in ratios.items() if value is not None}


def short_row(one: Contestant, found: Figures) -> tuple[str, ...]:
    """Return a line that fits a terminal, under ``SHORT_HEADERS``."""
    ratios = [found.ratios.get(base.name) for base in BASES]
    return (
        one.name,
        f"{found.tokens_per_s.median:.1f}",
        *(f"{ratio.median:.2f}" if ratio else "" for ratio in ratios),
        f"{found.ttft_ms.median:.0f}",
        f"{found.tpot_p50_ms:.1f}",
        f"{found.mean_acceptance_length:.2f}",
        f"{found.num_equal}/{found.num_answers}",
    )


def tokenised(folder: Path, texts: Sequence[str]) -> list[list[int]]:
    """Return the ids of each text as a user's message, so that all engines read the same."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    prompts = []
    for text in texts:
        chat = [{"role": "user", "content": text}]
        prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        prompts.append(tokenizer(prompt, add_special_tokens=False)["input_ids"])
    return prompts


async def measure(options: argparse.Namespace) -> None:
    """Start who can be started, measure, report, stop all."""
    prepared = prepare()
    draft = write_plain_draft(prepared.draft, prepared.target, PLAIN_DRAFT)
    texts = [question.text for question in load_questions(options.questions)]
    wanted = list(options.contestants)
    run = SideBySide(options, tokenised(prepared.target, texts), {}, wanted)
    if not VLLM_PYTHON.exists() and any(each.engine == VLLM for each in wanted):
        run.notes.append("vLLM is not installed; `make bench-peers` installs it")
        run.contestants = [each for each in wanted if each.engine != VLLM]
    try:
        # One after another: each measures how much memory there is, or compiles.
        drivers = commands(
            run.contestants, prepared.target, draft, is_vllm_eager=options.vllm_eager
        )
        for name, command in drivers.items():
            print(f"starting {name}", flush=True)
            try:
                run.peers[name] = await Peer.start(name, command)
                await run.peers[name].settle()
            except PeerError as error:
                run.notes.append(f"{name} does not take part: {error}")
                print(run.notes[-1], flush=True)
                run.contestants = [each for each in run.contestants if each.peer != name]
        await run.run()
    finally:
        await asyncio.gather(*(peer.stop() for peer in run.peers.values()))


async def run_until_signalled(options: argparse.Namespace) -> None:
    """Measure; a SIGTERM ends it as Ctrl-C does, in good order."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await measure(options)


def main() -> None:
    """Parse flags and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--questions", type=int, default=24)
    parser.add_argument("--tokens", type=int, default=96, help="longest answer")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 8, 16])
    parser.add_argument(
        "--contestants",
        type=contestant,
        nargs="+",
        default=list(CONTESTANTS),
        metavar="ENGINE:MODE",
        help=f"by default {' '.join(each.name for each in CONTESTANTS)}",
    )
    parser.add_argument(
        "--vllm-eager",
        action="store_true",
        help="vLLM does not compile its models: it starts in a minute, and is slower",
    )
    parser.add_argument(
        "--write-docs", action="store_true", help=f"write {DOCS}/benchmarks.md and its charts"
    )
    try:
        asyncio.run(run_until_signalled(parser.parse_args()))
    except (KeyboardInterrupt, asyncio.CancelledError):
        # What was measured until now has been written after each repeat.
        raise SystemExit(INTERRUPTED) from None


if __name__ == "__main__":
    main()
