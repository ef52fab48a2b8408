"""What every draft source saves on real questions, beside target-only in the same run.

``python -m bench.drafters``: SmolLM2-135M-Instruct with its trained drafter, questions spread over
all categories, 96 new tokens, EOS honoured, one stream, greedy and temperature 0.8 (coupled).
Sources take turns question by question, so that a machine's moods meet all of them alike.
"""

import argparse
import asyncio
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.report import print_table, write_report
from outrider import sources
from outrider.checkpoints import prepare
from outrider.cli.pairing import wait_paired
from outrider.cli.stack import StackOptions, run_stack
from outrider.client import Client, generate_request
from outrider.questions import Question, load_questions
from outrider.sampling import SamplingParams
from outrider.v1 import generation_pb2 as pb

TARGET_ONLY = "target-only"
COPYING = ("summarization", "rag")  # categories whose answers repeat much of the question
TEMPERATURES = (0.0, 0.8)
MAX_DRAFT_TOKENS = 32


@dataclass(frozen=True, slots=True)
class Contestant:
    """A draft source and how many tokens it drafts."""

    source: str
    num_draft_tokens: int = 0

    @property
    def name(self) -> str:
        """What the table calls it."""
        return (
            f"{self.source}, K = {self.num_draft_tokens}" if self.num_draft_tokens else self.source
        )

    @property
    def is_trained(self) -> bool:
        """True for a trained model by itself."""
        return self.source in (*sources.MODELS, *sources.HEADS)


def tree(source: str) -> str:
    """Name the trees of a model or head."""
    return f"{source}{sources.TREE}"


def merged(source: str) -> str:
    """Name the trees of a model or head with copies and recycling."""
    return f"{sources.COPIES}+{tree(source)}"


# One node fewer than a multiple of four: with the certain token before them they fill the kernel's
# tiles of rows.
CONTESTANTS = (
    Contestant(TARGET_ONLY),
    Contestant(sources.NGRAM, 7),
    Contestant(sources.NGRAM, 15),
    Contestant(sources.SUFFIX, 7),
    Contestant(sources.SUFFIX, 15),
    Contestant(sources.RECYCLING, 15),
    Contestant(sources.LOOKAHEAD, 23),
    Contestant(sources.MODEL, 3),
    Contestant(sources.PARALLEL, 7),
    Contestant(sources.PARALLEL_TREE, 15),
    Contestant(sources.EAGLE3, 3),
    Contestant(tree(sources.EAGLE3), 7),
    Contestant(tree(sources.EAGLE3), 15),
    Contestant(tree(sources.EAGLE3), 31),
    Contestant(sources.MEDUSA, 3),
    Contestant(tree(sources.MEDUSA), 15),
    Contestant(sources.REDRAFTER, 3),
    Contestant(tree(sources.REDRAFTER), 15),
    Contestant(f"{sources.SUFFIX}+{sources.EAGLE3}", 7),
    Contestant(sources.COPIES, 7),
    Contestant(sources.COPIES, 15),
    Contestant(sources.COPIES, 31),
    Contestant(merged(sources.PARALLEL), 15),
    Contestant(merged(sources.EAGLE3), 7),
    Contestant(merged(sources.EAGLE3), 15),
    Contestant(merged(sources.EAGLE3), 31),
)


@dataclass(slots=True)
class Score:
    """Receipts of one contestant at one temperature, added up."""

    receipts: list[tuple[str, pb.Receipt, int]] = field(default_factory=list)
    """Category, receipt, completion tokens."""

    def add(self, category: str, receipt: pb.Receipt, num_tokens: int) -> None:
        """Take an answer in."""
        self.receipts.append((category, receipt, num_tokens))

    @property
    def num_tokens(self) -> int:
        """Tokens of all answers behind the first; runs over other questions are pooled by them."""
        return sum(num - 1 for _, _, num in self.receipts)

    def mean_acceptance_length(self, categories: Iterable[str] = ()) -> float:
        """Tokens per target pass after the first, cycles without a draft included."""
        wanted = set(categories)
        some = [
            (receipt, num) for name, receipt, num in self.receipts if not wanted or name in wanted
        ]
        num_passes = sum(receipt.num_target_passes - 1 for receipt, _ in some)
        return sum(num - 1 for _, num in some) / max(num_passes, 1)

    @property
    def accepted_by_position(self) -> list[float]:
        """Share of the drafts of which at least so many tokens were kept; 1, 2, 3, ..."""
        counts = [0] * (MAX_DRAFT_TOKENS + 1)
        for _, receipt, _ in self.receipts:
            for length, count in enumerate(receipt.acceptance_histogram):
                counts[length] += count
        total = max(sum(counts), 1)
        return [sum(counts[length:]) / total for length in range(1, MAX_DRAFT_TOKENS + 1)]

    @property
    def tokens_per_s(self) -> float:
        """Tokens after the first over the time after the first."""
        total_s = sum(r.total_ms - r.ttft_ms for _, r, _ in self.receipts) / 1e3
        return self.num_tokens / max(total_s, 1e-9)

    def per_pass(self, name: str) -> float:
        """Return a time of the receipts per target pass, in ms."""
        num_passes = sum(receipt.num_target_passes for _, receipt, _ in self.receipts)
        total = sum(float(getattr(receipt, name)) for _, receipt, _ in self.receipts)
        return total / max(num_passes, 1)


Scores = dict[tuple[Contestant, float], Score]


async def answer(
    client: Client,
    question: Question,
    contestant: Contestant,
    temperature: float,
    num_tokens: int,
    salt: str,
) -> tuple[pb.Receipt, list[int]]:
    """Let one contestant answer one question, with nothing cached."""
    sampling = SamplingParams(temperature=temperature, max_tokens=num_tokens, seed=7)
    if contestant.num_draft_tokens:
        request = generate_request(
            [("user", question.text)],
            sampling,
            sources=[contestant.source],
            num_draft_tokens=contestant.num_draft_tokens,
            cache_salt=salt,
        )
    else:
        request = generate_request(
            [("user", question.text)], sampling, target_only=True, cache_salt=salt
        )
    output = await client.generate(request, timeout_s=600)
    return output.complete.receipt, list(output.token_ids)


async def run(options: argparse.Namespace) -> None:
    """Measure and report."""
    prepared = prepare()
    target = prepared.target
    drafters = options.draft or [prepared.draft, *prepared.heads]
    questions = load_questions(options.questions)[options.skip :]
    if options.categories:
        questions = [each for each in questions if each.category in options.categories]
    contestants = [
        c
        for c in CONTESTANTS
        if (not options.sources or c.source in options.sources)
        and c.num_draft_tokens <= options.max_draft_tokens
    ]
    if CONTESTANTS[0] not in contestants:
        contestants.insert(0, CONTESTANTS[0])
    scores: Scores = {(c, t): Score() for c in contestants for t in options.temperatures}
    num_different = 0
    stack_options = StackOptions(
        verifier_flags=[("--model", str(target))],
        drafter_flags=[("--model", str(folder)) for folder in drafters],
        orchestrator_flags=(
            "--draft-wait-ms",
            str(options.draft_wait_ms),
            "--no-lookup-on-miss",
            "--max-draft-tokens",
            str(MAX_DRAFT_TOKENS),
        ),
    )
    async with run_stack(stack_options) as stack, Client(stack.orchestrator.address) as client:
        workers = await wait_paired(client)
        offered = {source for worker in workers for source in worker.sources} | {TARGET_ONLY}
        contestants = [c for c in contestants if c.source in offered]
        for number, question in enumerate(questions):
            for temperature in options.temperatures:
                expected: list[int] | None = None
                for contestant in contestants:
                    # Later questions may profit from earlier answers, sources not from each other.
                    salt = f"{contestant.name} {temperature}"
                    receipt, ids = await answer(
                        client, question, contestant, temperature, options.tokens, salt
                    )
                    scores[contestant, temperature].add(question.category, receipt, len(ids))
                    expected = ids if expected is None else expected
                    num_different += ids != expected
            print(f"{number + 1} of {len(questions)}", flush=True)
            # After every question: a run that is cut short has still measured something.
            path = write(contestants, scores, questions[: number + 1], num_different, options)
    show(contestants, scores, len(questions), num_different, options)
    print(path)


def speedup(scores: Scores, contestant: Contestant, temperature: float) -> float:
    """Return tokens per second over those of target-only."""
    alone = scores[CONTESTANTS[0], temperature]
    return scores[contestant, temperature].tokens_per_s / alone.tokens_per_s


def write(
    contestants: Sequence[Contestant],
    scores: Scores,
    questions: Sequence[Question],
    num_different: int,
    options: argparse.Namespace,
) -> Path:
    """Write the JSON file; return its path."""
    details: dict[str, object] = {"questions": len(questions), "different_outputs": num_different}
    for temperature in options.temperatures:
        for each in contestants:
            score = scores[each, temperature]
            details[f"{each.name}, temperature {temperature}"] = {
                "num_tokens": score.num_tokens,
                "mean_acceptance_length": score.mean_acceptance_length(),
                "mean_acceptance_length_by_category": {
                    name: score.mean_acceptance_length([name])
                    for name in sorted({question.category for question in questions})
                },
                "accepted_by_position": score.accepted_by_position[: each.num_draft_tokens],
                "draft_wait_ms_per_pass": score.per_pass("draft_ms"),
                "verify_ms_per_pass": score.per_pass("verify_ms"),
                "tokens_per_s": score.tokens_per_s,
                "speedup": speedup(scores, each, temperature),
            }
    return write_report("drafters", summary(contestants, scores, options.temperatures), details)


def summary(
    contestants: Sequence[Contestant], scores: Scores, temperatures: Sequence[float]
) -> dict[str, float]:
    """Return the figures that are looked at first, of the temperatures that were measured."""
    found: dict[str, float] = {}
    if 0.0 in temperatures:
        lengths = {each: scores[each, 0.0].mean_acceptance_length() for each in contestants}
        lookups = [c for c in contestants if c.source in (sources.NGRAM, sources.SUFFIX)]
        found["best_mal_greedy"] = max(lengths.values())
        found["trained_mal_greedy"] = max(
            (length for c, length in lengths.items() if c.is_trained), default=0.0
        )
        found["lookup_mal_summarization_rag"] = max(
            (scores[c, 0.0].mean_acceptance_length(COPYING) for c in lookups), default=0.0
        )
    for temperature, name in ((0.0, "best_speedup_greedy"), (0.8, "best_speedup_t08")):
        if temperature in temperatures:
            found[name] = max(speedup(scores, each, temperature) for each in contestants)
    return found


def show(
    contestants: Sequence[Contestant],
    scores: Scores,
    num_questions: int,
    num_different: int,
    options: argparse.Namespace,
) -> None:
    """Print the tables."""
    headers = ("source", "all", "copying", "kept 1, 2, ...", "wait ms", "verify ms", "tok/s", "x")
    for temperature in options.temperatures:
        rows = []
        for each in contestants:
            score = scores[each, temperature]
            positions = score.accepted_by_position[: min(each.num_draft_tokens, 6)]
            rows.append(
                (
                    each.name,
                    f"{score.mean_acceptance_length():.2f}",
                    f"{score.mean_acceptance_length(COPYING):.2f}",
                    " ".join(f"{share:.2f}" for share in positions),
                    f"{score.per_pass('draft_ms'):.1f}",
                    f"{score.per_pass('verify_ms'):.1f}",
                    f"{score.tokens_per_s:.1f}",
                    f"{speedup(scores, each, temperature):.2f}",
                )
            )
        title = (
            f"temperature {temperature}: {num_questions} questions, {options.tokens} tokens; "
            "tokens per target pass"
        )
        print_table(title, headers, rows)
    if num_different:
        print(f"{num_different} outputs differ from target-only")


def main() -> None:
    """Parse flags and run."""
    parser = argparse.ArgumentParser(description=__doc__)
    full = os.environ.get("FULL") == "1"
    parser.add_argument("--questions", type=int, default=120 if full else 24)
    parser.add_argument(
        "--skip", type=int, default=0, help="pass over the first ones, measured in an earlier run"
    )
    parser.add_argument("--categories", nargs="+", default=[], help="of these only; by default all")
    parser.add_argument("--tokens", type=int, default=96, help="longest answer")
    parser.add_argument("--sources", nargs="+", default=[], help="by default all")
    parser.add_argument("--max-draft-tokens", type=int, default=MAX_DRAFT_TOKENS)
    parser.add_argument("--temperatures", type=float, nargs="+", default=list(TEMPERATURES))
    parser.add_argument(
        "--draft", type=Path, nargs="+", default=[], help="other draft models or heads"
    )
    parser.add_argument("--draft-wait-ms", type=float, default=1000.0)
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
