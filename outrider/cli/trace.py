"""``outrider trace``: how cycles were decided, number by number."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from outrider.client import Client, generate_request
from outrider.sampling import AcceptanceRule, SamplingParams
from outrider.v1 import common_pb2
from outrider.v1 import generation_pb2 as pb

NUM_SHOWN = 5  # ids of a distribution in a table
LEAST_SHOWN = 0.0005  # what would read 0.000
FIXTURE = "fixture"

Names = Callable[[Sequence[int]], Awaitable[list[str]]]
"""What token ids are called."""


@dataclass(frozen=True, slots=True)
class TraceOptions:
    """What the flags say."""

    prompt: str
    address: str
    chat: bool
    source: str
    num_draft_tokens: int
    rule: AcceptanceRule
    sampling: SamplingParams
    num_ids: int
    as_json: bool
    timeout_s: float


@dataclass(frozen=True, slots=True)
class FixtureOptions:
    """What the flags say for the built-in table."""

    rule: AcceptanceRule
    seed: int | None
    runs: int
    as_json: bool


async def run_trace(options: TraceOptions) -> None:
    """Run one request on the running services and show its cycles as they are decided."""
    console = Console(highlight=False, emoji=False)
    request = generate_request(
        [("user", options.prompt)] if options.chat else options.prompt,
        options.sampling,
        sources=[options.source] if options.source else [],
        num_draft_tokens=options.num_draft_tokens or None,
        acceptance_rule=options.rule,
        trace_top_ids=options.num_ids,
    )
    async with Client(options.address) as client:
        names = _names_of(client)
        cycles: list[dict[str, Any]] = []
        async for response in client.stream(request, timeout_s=options.timeout_s):
            if response.WhichOneof("kind") == "complete":
                if options.as_json:
                    receipt = response.complete.receipt
                    told = {"rule": receipt.rule, "seed": receipt.seed, "cycles": cycles}
                    console.print_json(data=told)
                return
            chunk = response.chunk
            if options.as_json:
                cycles.append(await cycle_dict(chunk.trace, chunk.token_ids, names))
            else:
                await print_cycle(console, chunk.trace, chunk.token_ids, names)


async def run_fixture(options: FixtureOptions) -> bool:
    """Show the built-in table, or compare frequencies over many runs; False if they disagree."""
    # Imported late: only this way needs torch in the process of the command line.
    from outrider import walkthrough

    async def names(token_ids: Sequence[int]) -> list[str]:
        return [walkthrough.TOKENS[token_id] for token_id in token_ids]

    console = Console(highlight=False, emoji=False)
    if options.runs:
        found = walkthrough.compare(options.runs, options.rule)
        if options.as_json:
            console.print_json(data=_comparison_dict(found, walkthrough.TOKENS))
        else:
            _print_comparison(console, found, walkthrough.TOKENS)
        return found.agrees
    seed = walkthrough.SEED if options.seed is None else options.seed
    made = walkthrough.walk(seed, options.rule)
    trace = pb.CycleTrace(
        base_position=walkthrough.BASE_POSITION,
        draft=made.draft.to_proto(),
        step=made.trace.to_proto(),
    )
    if options.as_json:
        told = await cycle_dict(trace, made.committed, names)
        console.print_json(data={"seed": seed, **told})
    else:
        console.print(f"seed {seed}")
        await print_cycle(console, trace, made.committed, names)
    return True


async def print_cycle(
    console: Console, trace: pb.CycleTrace, committed: Sequence[int], names: Names
) -> None:
    """Print one cycle so that a person can follow every number."""
    step, draft = trace.step, trace.draft
    num_accepted = sum(row.accepted for row in step.rows)
    what = f"{len(draft.token_ids)} tokens of {draft.source}" if draft.token_ids else "no draft"
    console.print(
        f"\n[bold]cycle {trace.cycle}[/bold] at position {trace.base_position}: "
        f"{escape(what)}, rule {step.rule}"
    )
    if trace.invalid_draft:
        console.print(f"[red]invalid draft:[/red] {escape(trace.invalid_draft)}")
    for i in range(min(len(step.rows), len(draft.token_ids))):
        for line in await _row_lines(trace, i, num_accepted, names):
            console.print(line, soft_wrap=True)
    told = [f"accepted prefix  {await _quoted(draft.token_ids[:num_accepted], names)}"]
    told.append(f"discarded suffix {await _quoted(draft.token_ids[num_accepted:], names)}")
    if step.HasField("corrected"):
        kind = "target" if num_accepted == len(step.rows) - 1 else "corrected"
        listed = await _listed(step.corrected, names)
        told.append(f"{kind} distribution {listed}, drawn with {step.final_uniform:.4f}")
    else:
        last = step.rows[min(num_accepted, len(step.rows) - 1)]
        told.append(f"target distribution {await _listed(last.target, names)}")
    told.append(f"[bold]committed        {await _quoted(committed, names)}[/bold]")
    console.print("\n".join(told), soft_wrap=True)


async def _row_lines(trace: pb.CycleTrace, i: int, num_accepted: int, names: Names) -> list[str]:
    """Return what decided one draft token, in lines that can be checked with a calculator."""
    step, draft, row = trace.step, trace.draft, trace.step.rows[i]
    q, drafted = _distribution(draft, i), draft.token_ids[i]
    q_drafted = _prob(q, drafted)
    drawn = f"  drawn with {row.proposal_uniform:.4f}" if row.HasField("proposal_uniform") else ""
    match step.rule:
        case "rejection":
            reason = (
                f"min(1, {row.target_prob:.4f} / {q_drafted:.4f}) = {row.threshold:.4f}, "
                f"uniform {row.acceptance_uniform:.4f}"
            )
        case "block":
            reason = (
                f"block threshold of these {i + 1} tokens {row.threshold:.4f}, "
                f"uniform {row.acceptance_uniform:.4f}"
            )
        case _:
            reason = f"the target's own token is {await _quoted([row.target_token_id], names)}"
    return [
        f"  [bold]{trace.base_position + i}[/bold] {await _quoted([drafted], names)}",
        f"     q  {await _listed(q, names)}{drawn}",
        f"     p  {await _listed(row.target, names)}",
        f"     {reason}: {_fate(i, num_accepted)}",
    ]


def _fate(i: int, num_accepted: int) -> str:
    if i < num_accepted:
        return "[green]accepted[/green]"
    return "[yellow]rejected[/yellow]" if i == num_accepted else "[dim]discarded[/dim]"


async def cycle_dict(
    trace: pb.CycleTrace, committed: Sequence[int], names: Names
) -> dict[str, Any]:
    """Return one cycle as JSON; absent numbers are null."""
    step, draft = trace.step, trace.draft
    num_accepted = sum(row.accepted for row in step.rows)
    rows = []
    for i, row in enumerate(step.rows):
        in_draft = i < len(draft.token_ids)
        drafted = draft.token_ids[i] if in_draft else None
        rows.append(
            {
                "position": trace.base_position + i,
                "draft_token": None if drafted is None else await _named(drafted, names),
                "accepted": row.accepted,
                "target_token": await _named(row.target_token_id, names)
                if row.HasField("target_token_id")
                else None,
                **{
                    name: getattr(row, name) if row.HasField(name) else None
                    for name in (
                        "draft_prob",
                        "target_prob",
                        "proposal_uniform",
                        "acceptance_uniform",
                        "threshold",
                    )
                },
                "draft_distribution": await _dicts(_distribution(draft, i), names)
                if in_draft
                else None,
                "target_distribution": await _dicts(row.target, names),
            }
        )
    return {
        "cycle": trace.cycle,
        "base_position": trace.base_position,
        "source": draft.source,
        "rule": step.rule,
        "invalid_draft": trace.invalid_draft,
        "rows": rows,
        "accepted_prefix": [await _named(i, names) for i in draft.token_ids[:num_accepted]],
        "discarded_suffix": [await _named(i, names) for i in draft.token_ids[num_accepted:]],
        "corrected_distribution": await _dicts(step.corrected, names)
        if step.HasField("corrected")
        else None,
        "final_uniform": step.final_uniform if step.HasField("final_uniform") else None,
        "committed": [await _named(i, names) for i in committed],
    }


def _distribution(draft: common_pb2.Draft, node: int) -> common_pb2.TopIds:
    """Return what a draft token was drawn from, most likely first; a point mass is itself."""
    if not draft.distributions:
        return common_pb2.TopIds(token_ids=[draft.token_ids[node]], probs=[1.0])
    # Imported late, as only drafts with distributions need numpy.
    from outrider import wire

    packed = draft.distributions[node]
    ids, counts = wire.unpack(packed.ids, packed.counts)
    order = (-counts).argsort(kind="stable")
    probs = counts[order] / wire.TOTAL_COUNT
    return common_pb2.TopIds(token_ids=ids[order].tolist(), probs=probs.tolist())


def _prob(distribution: common_pb2.TopIds, token_id: int) -> float:
    pairs = zip(distribution.token_ids, distribution.probs, strict=True)
    return next((prob for listed, prob in pairs if listed == token_id), 0.0)


async def _dicts(distribution: common_pb2.TopIds, names: Names) -> list[dict[str, Any]]:
    called = await names(list(distribution.token_ids))
    return [
        {"id": token_id, "token": name, "prob": prob}
        for token_id, name, prob in zip(
            distribution.token_ids, called, distribution.probs, strict=True
        )
    ]


async def _named(token_id: int, names: Names) -> dict[str, Any]:
    return {"id": token_id, "token": (await names([token_id]))[0]}


async def _listed(distribution: common_pb2.TopIds, names: Names) -> str:
    called = await names(list(distribution.token_ids[:NUM_SHOWN]))
    shown = [
        f"{escape(repr(name))} {prob:.3f}"
        for name, prob in zip(called, distribution.probs[:NUM_SHOWN], strict=True)
        if prob >= LEAST_SHOWN
    ]
    more = len(distribution.token_ids) - NUM_SHOWN
    return ", ".join(shown) + (f", {more} more" if more > 0 else "")


async def _quoted(token_ids: Sequence[int], names: Names) -> str:
    return escape(" ".join(repr(name) for name in await names(list(token_ids)))) or "-"


def _names_of(client: Client) -> Names:
    """Return a lookup of the pieces that ids stand for, asked of the target's tokenizer."""
    known: dict[int, str] = {}

    async def names(token_ids: Sequence[int]) -> list[str]:
        for token_id in token_ids:
            if token_id not in known:
                known[token_id] = await _piece(client, token_id)
        return [known[token_id] for token_id in token_ids]

    return names


async def _piece(client: Client, token_id: int) -> str:
    request = pb.DetokenizeRequest(token_ids=[token_id], skip_special_tokens=False)
    try:
        text: str = (await client.stub.Detokenize(request, timeout=10)).text
        return text
    except grpc.aio.AioRpcError:
        return f"<{token_id}>"


def _print_comparison(console: Console, found: Any, tokens: Sequence[str]) -> None:
    table = Table(box=box.SIMPLE, pad_edge=False)
    for title in ("position", "token", "exact", "speculative", "target-only", "tolerance"):
        table.add_column(title, justify="left" if title == "token" else "right")
    for position in range(len(found.exact)):
        for token, name in enumerate(tokens):
            table.add_row(
                str(position) if token == 0 else "",
                name,
                f"{found.exact[position, token]:.3f}",
                f"{found.speculative[position, token]:.4f}",
                f"{found.target_only[position, token]:.4f}",
                f"{found.tolerance[position, token]:.4f}",
            )
    console.print(table)
    console.print(
        f"{found.num_runs} runs with the same seeds; each frequency within 5 standard errors "
        "of the exact probability, both within 5 of their difference: "
        + ("[green]agree[/green]" if found.agrees else "[bold red]disagree[/bold red]")
    )


def _comparison_dict(found: Any, tokens: Sequence[str]) -> dict[str, Any]:
    return {
        "runs": found.num_runs,
        "tokens": list(tokens),
        "exact": found.exact.tolist(),
        "speculative": found.speculative.tolist(),
        "target_only": found.target_only.tolist(),
        "tolerance": found.tolerance.tolist(),
        "agrees": found.agrees,
    }
