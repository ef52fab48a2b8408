"""Structured output with every drafter: is all of it valid, and what does the constraint cost?

``python -m bench.constraints``: SmolLM2-135M-Instruct over gRPC, sampled with seeds of their own,
several schemas in turn, a few streams at once. Each answer is read by ``json.loads`` and judged by
jsonschema. Then the same questions without a constraint, with answers of the same lengths, and the
time that masks and drafts take from the library alone.
"""

import argparse
import asyncio
import json
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema

from bench.report import print_table, write_report
from outrider import sources
from outrider.checkpoints import prepare
from outrider.cli.pairing import wait_paired
from outrider.cli.stack import StackOptions, run_stack
from outrider.client import Client, generate_request
from outrider.constraint import Constraints
from outrider.identity import TokenizerFiles
from outrider.identity.special import SpecialTokens
from outrider.sampling import Constraint, ConstraintKind, SamplingParams
from outrider.v1 import generation_pb2 as pb

TARGET_ONLY = "target-only"
DRAFTERS = (TARGET_ONLY, sources.NGRAM, sources.MODEL, sources.EAGLE3)
MAX_TOKENS = 400
TEMPERATURE = 0.8
NUM_DRAFT_TOKENS = 4


@dataclass(frozen=True, slots=True)
class Task:
    """A question, and the schema of its answer."""

    name: str
    question: str
    schema: dict[str, Any]

    @property
    def constraint(self) -> Constraint:
        """The schema as a constraint."""
        return Constraint(ConstraintKind.JSON_SCHEMA, json.dumps(self.schema))


def _object(**properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


_COUNT = {"type": "integer", "minimum": 1, "maximum": 99}
_WORD = {"type": "string", "minLength": 1, "maxLength": 24}
TASKS = (
    Task(
        "person",
        "Invent a person. Answer in JSON with name, age and city.",
        _object(name=_WORD, age={"type": "integer", "minimum": 0, "maximum": 120}, city=_WORD),
    ),
    Task(
        "sentiment",
        "Is this review positive, negative or neutral? 'The pump broke after two days.' Answer in"
        " JSON with label and score.",
        _object(
            label={"enum": ["positive", "negative", "neutral"]},
            score={"type": "number", "minimum": 0, "maximum": 1, "multipleOf": 0.01},
        ),
    ),
    Task(
        "list",
        "Name some animals of the sea. Answer in JSON with a list called animals.",
        _object(animals={"type": "array", "items": _WORD, "minItems": 1, "maxItems": 4}),
    ),
    Task(
        "order",
        "A customer orders two red mugs to be delivered on 3 May 2025. Write the order in JSON.",
        _object(
            item={
                "anyOf": [
                    _object(
                        mug={"enum": ["red", "blue"]},
                        count={"type": "integer", "minimum": 1, "maximum": 99},
                    ),
                    _object(plate=_WORD),
                ]
            },
            date={"type": "string", "format": "date"},
            gift={"type": ["boolean", "null"]},
        ),
    ),
    Task(
        "tree",
        "Draw a small family tree in JSON: each has a name and up to two children.",
        {
            "$ref": "#/$defs/person",
            "$defs": {
                "person": _object(
                    name={"type": "string", "pattern": "^[A-Z][a-z]{1,9}$"},
                    children={
                        "type": "array",
                        "items": {"anyOf": [{"$ref": "#/$defs/leaf"}]},
                        "maxItems": 2,
                    },
                ),
                "leaf": _object(name={"type": "string", "pattern": "^[A-Z][a-z]{1,9}$"}),
            },
        },
    ),
)


@dataclass(slots=True)
class Score:
    """What came of one drafter's requests."""

    num_valid: int = 0
    faults: list[str] = field(default_factory=list)
    reasons: Counter[str] = field(default_factory=Counter)
    num_tokens: int = 0
    num_drafted: int = 0
    num_accepted: int = 0
    num_passes: int = 0
    seconds: float = 0.0
    lengths: list[int] = field(default_factory=list)

    def take(self, task: Task | None, text: str, complete: pb.GenerateComplete) -> None:
        """Judge an answer; without a task any is valid."""
        reason = pb.FinishReason.Name(complete.finish_reason).removeprefix("FINISH_REASON_")
        self.reasons[reason.lower()] += 1
        fault = "" if task is None else fault_of(task, text)
        if fault:
            self.faults.append(fault)
        else:
            self.num_valid += 1
        receipt = complete.receipt
        self.num_tokens += complete.completion_tokens
        self.num_drafted += receipt.num_draft_tokens
        self.num_accepted += receipt.num_accepted_draft_tokens
        self.num_passes += receipt.num_target_passes
        self.lengths.append(complete.completion_tokens)


def fault_of(task: Task, text: str) -> str:
    """Return what is wrong with an answer, empty for a valid one."""
    checker = jsonschema.Draft202012Validator(
        task.schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    )
    try:
        checker.validate(json.loads(text))
    except (ValueError, jsonschema.ValidationError) as error:
        return f"{task.name}: {str(error).splitlines()[0]}: {text[:200]}"
    return ""


async def play(
    client: Client, drafter: str, options: argparse.Namespace, lengths: Sequence[int] = ()
) -> Score:
    """Run all requests of a drafter; with ``lengths`` without constraint, each so long."""
    score, places = Score(), asyncio.Semaphore(options.streams)

    async def one(number: int) -> None:
        task = TASKS[number % len(TASKS)]
        sampling = SamplingParams(
            temperature=TEMPERATURE,
            seed=number,
            max_tokens=lengths[number] if lengths else MAX_TOKENS,
            ignore_eos=bool(lengths),
            constraint=None if lengths else task.constraint,
        )
        drafts: dict[str, Any] = {"target_only": True}
        if drafter != TARGET_ONLY:
            drafts = {"sources": [drafter], "num_draft_tokens": NUM_DRAFT_TOKENS}
        request = generate_request([("user", task.question)], sampling, **drafts)
        async with places:
            output = await client.generate(request, timeout_s=600)
            score.take(None if lengths else task, output.text, output.complete)

    began = time.perf_counter()
    await asyncio.gather(*(one(number) for number in range(len(lengths) or options.runs)))
    score.seconds = time.perf_counter() - began
    return score


@dataclass(frozen=True, slots=True)
class LibraryCosts:
    """What the library takes on this machine, in ms."""

    read_tokenizer: float
    compile: float
    mask: float
    worst_mask: float
    advance: float


def library_costs(target: Path) -> LibraryCosts:
    """Walk valid texts of every task, asking for the mask of each row."""
    files = TokenizerFiles.from_folder(target)
    tokenizer = files.tokenizer()
    constraints = Constraints(tokenizer)
    texts = {
        "person": '{"name": "Ada", "age": 36, "city": "London"}',
        "sentiment": '{"label": "negative", "score": 0.9}',
        "list": '{"animals": ["whale", "sea horse", "crab"]}',
        "order": '{"item": {"mug": "red", "count": 2}, "date": "2025-05-03", "gift": null}',
        "tree": '{"name": "Ada", "children": [{"name": "Bob"}, {"name": "Eve"}]}',
    }
    stop = SpecialTokens.from_files(files).eos_token_ids[0]
    began = time.perf_counter()
    constraints.open(_params(Constraint(ConstraintKind.JSON_OBJECT), stop))
    first = _ms_since(began)
    compiled, masks, steps = [], [], []
    for task in TASKS:
        began = time.perf_counter()
        text = constraints.open(_params(task.constraint, stop))
        compiled.append(_ms_since(began))
        assert text is not None
        ids = tokenizer.encode(texts[task.name], add_special_tokens=False).ids
        for _ in range(2):  # the first walk builds what later ones share
            state = text
            for end in range(1, len(ids) + 1):
                began = time.perf_counter()
                state.allowed((), ())
                masks.append(_ms_since(began))
                began = time.perf_counter()
                state = state.behind(ids[:end])
                steps.append(_ms_since(began))
    return LibraryCosts(
        first, statistics.median(compiled), statistics.median(masks), max(masks),
        statistics.median(steps),
    )  # fmt: skip


def _params(constraint: Constraint, stop: int) -> SamplingParams:
    return SamplingParams(constraint=constraint, stop_token_ids=(stop,))


def _ms_since(began: float) -> float:
    return (time.perf_counter() - began) * 1e3


async def run(options: argparse.Namespace) -> bool:
    """Measure and report; returns whether every answer was valid."""
    prepared = prepare()
    costs = library_costs(prepared.target)
    stack_options = StackOptions(
        verifier_flags=[("--model", str(prepared.target))],
        drafter_flags=[("--model", str(f)) for f in (prepared.draft, *prepared.heads)],
        orchestrator_flags=("--draft-wait-ms", "200", "--no-lookup-on-miss"),
    )
    held: dict[str, Score] = {}
    free: dict[str, Score] = {}
    async with run_stack(stack_options) as stack, Client(stack.orchestrator.address) as client:
        workers = await wait_paired(client)
        offered = {source for worker in workers for source in worker.sources} | {TARGET_ONLY}
        for drafter in (each for each in options.drafters if each in offered):
            held[drafter] = await play(client, drafter, options)
            lengths = held[drafter].lengths[: options.free_runs]
            free[drafter] = await play(client, drafter, options, lengths)
            _show(held, free, costs, options)
            path = _write(held, free, costs, options)
    print(path)
    return all(not score.faults for score in held.values())


def _rate(score: Score) -> float:
    return score.num_tokens / max(score.seconds, 1e-9)


def _per_pass(score: Score) -> float:
    return score.num_tokens / max(score.num_passes, 1)


def _show(
    held: dict[str, Score], free: dict[str, Score], costs: LibraryCosts, options: argparse.Namespace
) -> None:
    headers = ("drafter", "valid", "stop", "length", "tokens", "tok/s", "free", "per pass", "free")
    rows = [
        (
            name,
            f"{score.num_valid} of {options.runs}",
            str(score.reasons["stop"]),
            str(score.reasons["length"]),
            str(score.num_tokens),
            f"{_rate(score):.1f}",
            f"{_rate(free[name]):.1f}",
            f"{_per_pass(score):.2f}",
            f"{_per_pass(free[name]):.2f}",
        )
        for name, score in held.items()
    ]
    print_table(f"{len(TASKS)} schemas, {options.streams} streams", headers, rows)
    print(
        f"library: tokenizer {costs.read_tokenizer:.0f} ms once, compile {costs.compile:.1f} ms, "
        f"mask {costs.mask:.3f} ms (worst {costs.worst_mask:.1f}), step {costs.advance:.3f} ms",
        flush=True,
    )
    for score in held.values():
        for fault in score.faults[:5]:
            print(fault)


def _write(
    held: dict[str, Score], free: dict[str, Score], costs: LibraryCosts, options: argparse.Namespace
) -> Path:
    summary = {
        "valid_share": min(score.num_valid / options.runs for score in held.values()),
        "least_relative_rate": min(_rate(held[name]) / _rate(free[name]) for name in held),
        "mask_ms": costs.mask,
        "worst_mask_ms": costs.worst_mask,
        "compile_ms": costs.compile,
    }
    details: dict[str, object] = {
        name: {
            "runs": options.runs,
            "valid": score.num_valid,
            "faults": score.faults,
            "finish_reasons": dict(score.reasons),
            "tokens_per_s": _rate(score),
            "tokens_per_s_free": _rate(free[name]),
            "tokens_per_pass": _per_pass(score),
            "tokens_per_pass_free": _per_pass(free[name]),
            "acceptance_rate": score.num_accepted / max(score.num_drafted, 1),
            "acceptance_rate_free": free[name].num_accepted / max(free[name].num_drafted, 1),
        }
        for name, score in held.items()
    }
    return write_report("constraints", summary, details)


def main() -> None:
    """Parse flags and run; the exit status says whether every answer was valid."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=500, help="requests of each drafter")
    parser.add_argument("--free-runs", type=int, default=100, help="requests without constraint")
    parser.add_argument("--streams", type=int, default=8, help="requests at once")
    parser.add_argument("--drafters", nargs="+", default=list(DRAFTERS))
    if not asyncio.run(run(parser.parse_args())):
        raise SystemExit("an answer was not valid")


if __name__ == "__main__":
    main()
