"""What a trained drafter tells about itself: a card for people, the same as JSON, and a plot."""

import json
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from pathlib import Path
from typing import Any

from outrider.training.trainer import Progress

CARD_NAME = "card.json"
README_NAME = "README.md"
PLOT_NAME = "training.png"
SMOOTHED = 50  # steps whose mean loss is one point of the plot


def write_card(folder: Path, progress: Progress, facts: Mapping[str, Any]) -> None:
    """Write card, page and plot."""
    measures = [asdict(each) for each in progress.measures]
    plain = {name: asdict(v) if is_dataclass(v) else v for name, v in facts.items()}  # type: ignore[arg-type]
    card = {
        **plain,
        "num_tokens_trained": progress.num_tokens,
        "num_steps": progress.step,
        "train_s": round(progress.train_s),
        "measures": measures,
    }
    (folder / CARD_NAME).write_text(json.dumps(card, indent=2) + "\n")
    (folder / README_NAME).write_text(_page(card))
    plot(progress, folder / PLOT_NAME)


def _page(card: Mapping[str, Any]) -> str:
    lines = [
        f"# Drafter ({card['kind']}) for {card['target']}",
        "",
        f"{card['description']}, trained on "
        f"{card['num_tokens_trained']:,} tokens of text that the target wrote ("
        f"{card['num_examples']:,} examples, prompts included, read repeatedly), seed "
        f"{card['settings']['seed']}, in {card['train_s'] / 60:.0f} minutes. Embeddings and head "
        f"are the target's; the {card['draft_vocab_size']:,} ids that can be proposed cover "
        f"{card['draft_vocab_coverage']:.1%} of what it says.",
        "",
        "Measured by replay over greedy answers that were held out:",
        "",
        "| tokens | loss | agreement | mean acceptance length | kept by position |",
        "|---|---|---|---|---|",
    ]
    for each in card["measures"]:
        kept = " ".join(f"{share:.2f}" for share in each["acceptance_by_position"])
        lines.append(
            f"| {each['num_tokens']:,} | {each['loss']:.3f} | {each['agreement']:.1%} "
            f"| {each['mean_acceptance_length']:.2f} | {kept} |"
        )
    return "\n".join([*lines, "", f"Made by `{card['command']}`.", ""])


def plot(progress: Progress, path: Path) -> None:
    """Draw loss and acceptance over tokens."""
    # Imported here: only a finished run draws, and drawing takes a package of its own.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4.5), layout="constrained")
    axes = figure.subplots()
    per_step = progress.num_tokens / max(progress.step, 1)
    losses = progress.losses
    points = [
        (begin + len(losses[begin : begin + SMOOTHED]), losses[begin : begin + SMOOTHED])
        for begin in range(0, len(losses), SMOOTHED)
    ]
    axes.plot(
        [end * per_step / 1e6 for end, _ in points],
        [sum(some) / len(some) for _, some in points],
        color="tab:blue",
    )
    axes.set_xlabel("million tokens read")
    axes.set_ylabel("training loss", color="tab:blue")
    right = axes.twinx()
    seen = [each.num_tokens / 1e6 for each in progress.measures]
    right.plot(
        seen, [m.mean_acceptance_length for m in progress.measures], "o-", color="tab:orange"
    )
    right.set_ylabel("mean acceptance length, held out", color="tab:orange")
    figure.savefig(path, dpi=110)
