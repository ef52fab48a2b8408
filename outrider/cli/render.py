"""How outputs and receipts look in a terminal."""

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from outrider.v1 import generation_pb2 as pb

# Told apart by style in a terminal, and by brackets where there are no colours.
STYLES = {
    pb.TOKEN_ORIGIN_ACCEPTED: "green",
    pb.TOKEN_ORIGIN_RECOVERED: "yellow",
    pb.TOKEN_ORIGIN_BONUS: "cyan",
    pb.TOKEN_ORIGIN_ONLY: "",
}


def plain_console(*, stderr: bool = False) -> Console:
    """Return a console that prints texts as they are: what comes from outside is no markup."""
    return Console(stderr=stderr, highlight=False, markup=False, emoji=False)


def legend(console: Console) -> Text:
    """Return what marks the origins of tokens on this console."""
    if not _has_colors(console):
        return Text("accepted draft tokens stand in ‹ ›")
    return Text.from_markup(
        "[green]accepted draft[/green], [cyan]bonus[/cyan], [yellow]recovered[/yellow], plain"
    )


def print_chunk(console: Console, chunk: pb.GenerateChunk) -> None:
    """Print the pieces of a chunk as they came about.

    Accepted runs are bracketed without colours.
    """
    text = Text()
    bracket = not _has_colors(console)
    bracketed = False
    for piece, origin in zip(chunk.pieces, chunk.origins, strict=True):
        if not piece:  # a special token, or text that is not certain yet
            continue
        accepted = bracket and origin == pb.TOKEN_ORIGIN_ACCEPTED
        if accepted != bracketed:
            text.append("‹" if accepted else "›")
            bracketed = accepted
        text.append(piece, style=STYLES[origin])
    if bracketed:
        text.append("›")
    console.print(text, end="", soft_wrap=True)


def logprobs_table(chunks: Sequence[pb.GenerateChunk]) -> Table:
    """Return what every token of a choice was worth, and the likeliest ids in its place."""
    table = Table(box=box.SIMPLE, pad_edge=False)
    for column in ("text", "id", "logprob", "likeliest ids"):
        table.add_column(column)
    for chunk in chunks:
        for piece, token in zip(chunk.pieces, chunk.logprobs, strict=True):
            likeliest = zip(token.top_ids, token.top_logprobs, strict=True)
            listed = "  ".join(f"{token_id} {logprob:.3f}" for token_id, logprob in likeliest)
            table.add_row(repr(piece), str(token.token_id), f"{token.logprob:.3f}", listed)
    return table


def receipt_table(receipt: pb.Receipt) -> Table:
    """Return the figures of one request."""
    table = Table(box=box.SIMPLE, show_header=False, pad_edge=False)
    table.add_column(style="dim")
    table.add_column()
    failure = f": {receipt.status_code}, {receipt.error}" if receipt.status_code else ""
    table.add_row("finish", Text(receipt.outcome + failure))
    if receipt.HasField("policy"):
        policy = receipt.policy
        told = f"{policy.version} ({policy.digest}), class {policy.workload_class}"
        table.add_row("policy", Text(f"{told}: {receipt.decision}"))
    if receipt.outcome == "refused":
        return table
    counts = f"{receipt.num_prompt_tokens} prompt ({receipt.num_cached_tokens} cached)"
    table.add_row("tokens", f"{counts}, {receipt.num_output_tokens} output")
    saved = f"{receipt.num_target_passes} ({receipt.num_passes_saved} saved)"
    table.add_row("target passes", saved)
    accepted = f"{receipt.num_accepted_draft_tokens} of {receipt.num_draft_tokens} draft tokens"
    length = f"{receipt.mean_acceptance_length:.2f}" if receipt.num_spec_steps else "–"
    table.add_row("accepted", f"{accepted}, mean acceptance length {length}")
    table.add_row("rule", receipt.rule + (f", seed {receipt.seed}" if receipt.seed else ""))
    times = f"first token {receipt.ttft_ms:.0f} ms, total {receipt.total_ms:.0f} ms"
    parts = f"draft {receipt.draft_ms:.0f}, verify {receipt.verify_ms:.0f}"
    table.add_row("time", f"{times} ({parts}, network {receipt.network_ms:.0f})")
    if receipt.fallbacks:
        fallbacks = ", ".join(f"{each.reason} {each.count}" for each in receipt.fallbacks)
        table.add_row("no draft", fallbacks)
    if receipt.HasField("shadow"):
        table.add_row("shadow", _shadow(receipt.shadow))
    return table


def _shadow(shadow: pb.ShadowResults) -> str:
    accepted = f"{shadow.num_accepted_draft_tokens} of {shadow.num_draft_tokens} draft tokens"
    saved = f"{shadow.num_passes_saved} passes saved over {shadow.num_covered_tokens} tokens"
    times = f"{shadow.expected_ms:.0f} ms for {shadow.target_only_ms:.0f}"
    return f"would have accepted {accepted}, {saved}, {times} (judged by {shadow.judged_by})"


def _has_colors(console: Console) -> bool:
    return console.color_system is not None and not console.no_color
