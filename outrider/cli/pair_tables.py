"""How a pair check reads in a terminal."""

from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from outrider import sources
from outrider.advisor.advice import Advice
from outrider.advisor.report import Findings, Pair
from outrider.advisor.runs import Setting
from outrider.gain import MIN_GAIN
from outrider.v1 import common_pb2

DIGEST_CHARACTERS = 16
NUM_POSITIONS = 6


def print_pair(console: Console, pair: Pair) -> None:
    """Print both identities side by side, and what forbids the pair."""
    if pair.draft.architecture:  # a source without a model has none
        table = _table("identities", ("", "target", "draft", ""), numbers_from=4)
        for row in identity_rows(pair):
            table.add_row(*row)
        console.print(table)
    else:
        console.print("the draft source is bound to no model: it fits every target")
    for obstacle in pair.obstacles:
        console.print(Text.assemble(("does not fit: ", "red"), obstacle), soft_wrap=True)


def identity_rows(pair: Pair) -> list[tuple[str, str, str, str]]:
    """Return what is compared, with both values and what that means."""
    target, draft = pair.target, pair.draft
    reads_weights = any(name in sources.HEADS for name in pair.sources)
    rows = [
        ("model", target.architecture, draft.architecture, ""),
        _compared("tokenizer", *_digests(pair, "tokenizer_digest")),
        _compared(
            "probe text",
            target.tokenizer_probe_digest[:DIGEST_CHARACTERS],
            draft.tokenizer_probe_digest[:DIGEST_CHARACTERS],
        ),
        _compared("ids", str(target.vocab_size), str(draft.vocab_size)),
        _compared("special ids", _special(target), _special(draft)),
        _compared("chat template", *_digests(pair, "chat_template_digest")),
    ]
    weights = _digests(pair, "weights_digest")
    if reads_weights:
        is_other = any(each.startswith("weights") for each in pair.obstacles)
        rows.append(("weights", *weights, "made for others" if is_other else "made for these"))
    else:
        rows.append(("weights", *weights, "not bound"))
    return rows


def print_findings(console: Console, findings: Findings) -> None:
    """Print the curves, the predictions and the advice."""
    if not findings.pair.fits:
        console.print("incompatible: requests would run target-only", style="bold red")
        return
    for table in (
        acceptance_table(findings),
        pass_table(findings),
        cost_table(findings),
        gain_table(findings),
        advice_table(findings.advice),
    ):
        console.print(table)
    console.print(verdict(findings), soft_wrap=True)


def acceptance_table(findings: Findings) -> Table:
    """Tokens a draft yields, by draft length."""
    headers = ("source", "temp", "K", "length", "came", f"kept 1 to {NUM_POSITIONS} or more")
    table = _table("acceptance; length: 1 + accepted tokens a draft", headers)
    for (temperature, source), by_length in findings.accepted.items():
        for length, each in by_length.items():
            positions = " ".join(f"{share:.2f}" for share in each.by_position[:NUM_POSITIONS])
            table.add_row(
                source,
                f"{temperature:g}",
                str(length),
                f"{each.mean_acceptance_length:.2f}",
                f"{each.arrival:.0%}",
                positions,
            )
    return table


def pass_table(findings: Findings) -> Table:
    """What a pass of the target takes."""
    temperatures = [f"at {temperature:g}" for temperature in findings.passes]
    table = _table("a pass of the target, ms by all its rows", ("rows", *temperatures))
    rows = {row for passes in findings.passes.values() for row in passes.buckets}
    for row in sorted(row for row in rows if row.bit_count() == 1):
        values = (f"{passes(row):.1f}" for passes in findings.passes.values())
        table.add_row(str(row), *values)
    return table


def cost_table(findings: Findings) -> Table:
    """What a cycle takes, part by part."""
    headers = ("source", "temp", "streams", "K", "draft", "waited", "pass", "beside", "rows")
    title = "a cycle, ms; draft: as the drafter states; beside: of a round trip beyond its pass"
    table = _table(title, headers)
    for setting, each in findings.times.items():
        table.add_row(
            *_place(setting),
            f"{each.compute_ms:.1f}",
            f"{each.wait_ms:.1f}",
            f"{each.pass_ms:.1f}",
            f"{each.beside_ms:.1f}",
            f"{each.rows:.1f}",
        )
    return table


def gain_table(findings: Findings) -> Table:
    """Predicted gains by load."""
    loads = sorted({each.setting.num_streams for each in findings.predictions})
    headers = ("source", "temp", "K", *(f"{load} at once" for load in loads))
    table = _table("predicted tokens per second over target-only", headers)
    rows: dict[tuple[str, str, str], dict[int, float]] = {}
    for each in findings.predictions:
        source, temperature, _, length = _place(each.setting)
        by_load = rows.setdefault((source, temperature, length), {})
        by_load[each.setting.num_streams] = each.gain
    for place, by_load in sorted(rows.items(), key=lambda row: (row[0][1], row[0][0])):
        table.add_row(*place, *(_gain(by_load[load]) for load in loads))
    return table


def advice_table(advice: Iterable[Advice]) -> Table:
    """The best at each load, predicted and measured."""
    headers = ("temp", "streams", "best, K", "predicted", "measured", "rounds", "advice")
    table = _table("the best at each temperature and load", headers)
    for each in advice:
        best, check = each.best, each.check
        setting = best.setting
        measured, rounds = "", ""
        if check is not None:
            measured = f"{check.gain:.2f}"
            rounds = f"{min(check.gains):.2f} to {max(check.gains):.2f}"
        word = ("pays", "green") if each.pays else ("target-only", "yellow")
        table.add_row(
            f"{setting.temperature:g}",
            str(setting.num_streams),
            f"{setting.source} {setting.num_draft_tokens}",
            f"{best.gain:.2f}",
            measured or "not tried",
            rounds,
            Text(*word),
        )
    return table


def verdict(findings: Findings) -> Text:
    """Return the answer in a sentence or two."""
    paying = [each for each in findings.advice if each.pays]
    differing = sum(each.check.num_differing for each in findings.advice if each.check)
    told = Text()
    if paying:
        told.append("pays: ", "bold green")
        told.append("; ".join(_words(each) for each in paying))
    else:
        told.append("pays nowhere: ", "bold yellow")
        told.append(f"no setting was both predicted and measured to gain {MIN_GAIN - 1:.0%}")
    if differing:
        told.append(f"\n{differing} answers differ from those of target-only", "bold red")
    return told


def _words(advice: Advice) -> str:
    setting = advice.best.setting
    assert advice.check is not None
    streams = "1 stream" if setting.num_streams == 1 else f"{setting.num_streams} streams"
    return (
        f"{setting.source} with K = {setting.num_draft_tokens} at temperature "
        f"{setting.temperature:g} and {streams} ({advice.check.gain:.2f})"
    )


def _table(title: str, headers: Sequence[str], *, numbers_from: int = 1) -> Table:
    table = Table(title=title, box=box.SIMPLE, title_justify="left")
    for index, header in enumerate(headers):
        table.add_column(header, justify="left" if index < numbers_from else "right")
    return table


def _place(setting: Setting) -> tuple[str, str, str, str]:
    return (
        setting.source or "target-only",
        f"{setting.temperature:g}",
        str(setting.num_streams),
        str(setting.num_draft_tokens),
    )


def _gain(gain: float) -> Text:
    return Text(f"{gain:.2f}", "green" if gain >= MIN_GAIN else "")


def _compared(what: str, target: str, draft: str) -> tuple[str, str, str, str]:
    return what, target, draft, "same" if target == draft else "different"


def _digests(pair: Pair, name: str) -> tuple[str, str]:
    sides = (pair.target.digests, pair.draft.digests)
    ours, theirs = (getattr(each, name)[:DIGEST_CHARACTERS] or "none" for each in sides)
    return ours, theirs


def _special(identity: common_pb2.ModelIdentity) -> str:
    bos = identity.bos_token_id if identity.HasField("bos_token_id") else "none"
    return f"bos {bos}, eos {list(identity.eos_token_ids)}"
