"""``outrider status``."""

from google.protobuf.json_format import MessageToDict
from rich import box
from rich.table import Table
from rich.text import Text

from outrider.cli.render import plain_console
from outrider.client import Client
from outrider.v1 import generation_pb2 as pb

STATE_STYLES = {
    "ready": "green",
    "suspect": "yellow",
    "connecting": "yellow",
    "refused": "red",
    "lost": "red",
}
DIGEST_CHARACTERS = 12


async def run_status(address: str, *, as_json: bool) -> None:
    """Ask the orchestrator and print what it knows of its workers."""
    console = plain_console()
    async with Client(address) as client:
        info = await client.stub.GetServerInfo(pb.GetServerInfoRequest(), timeout=10)
    if as_json:
        console.print_json(data=MessageToDict(info, preserving_proto_field_name=True))
        return
    console.print(f"outrider {info.version} at {address}: {info.state} {info.reason}".rstrip())
    console.print(policy_line(info.policy), soft_wrap=True)
    for worker in info.workers:
        console.print(worker_table(worker))
    for pair in info.pairs:
        console.print(pair_line(pair), soft_wrap=True)


def policy_line(policy: pb.PolicyInfo) -> Text:
    """Return which policy is in force, and what is wrong with its file since."""
    told = Text(f"policy {policy.version} ({policy.digest}) {policy.path}".rstrip())
    if policy.error:
        told.append(f"\nits file was refused since: {policy.error}", "red")
    return told


def pair_line(pair: pb.PairInfo) -> Text:
    """Return whether a drafter serves a target."""
    names = f"{pair.drafter} for {pair.model}: "
    if pair.reason:
        return Text.assemble(names, ("not used, ", "red"), pair.reason)
    used = "used, a chat template difference was allowed" if pair.template_overridden else "used"
    return Text.assemble(names, (used, "green"))


def worker_table(worker: pb.WorkerInfo) -> Table:
    """Return what is known of one worker."""
    table = Table(box=box.SIMPLE, show_header=False, pad_edge=False)
    table.add_column(style="dim")
    table.add_column(overflow="fold")
    state = (worker.state, STATE_STYLES.get(worker.state, ""))
    table.add_row(worker.role, Text.assemble(f"{worker.address}  ", state))
    if worker.reason:
        table.add_row("why", worker.reason)
    identity = worker.identity
    if identity.architecture:  # a source without a model has none
        numerics = identity.numerics
        row = "row-invariant" if numerics.row_invariant else "not row-invariant"
        table.add_row("model", f"{identity.name} {identity.revision} {identity.architecture}")
        table.add_row(
            "numerics", f"{numerics.dtype} on {numerics.device}, {numerics.kernels}, {row}"
        )
        digests = identity.digests
        names = ("tokenizer_digest", "chat_template_digest", "weights_digest")
        shown = [
            f"{n.removesuffix('_digest')} {getattr(digests, n)[:DIGEST_CHARACTERS]}" for n in names
        ]
        table.add_row("digests", ", ".join(shown))
        sizes = f"{identity.vocab_size} ids, {identity.logits_size} logits"
        table.add_row("sizes", f"{sizes}, context {identity.max_context_length}")
    if worker.sources:
        table.add_row("sources", ", ".join(worker.sources))
    return table
