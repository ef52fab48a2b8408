"""``outrider receipt``."""

from google.protobuf.json_format import MessageToDict
from rich.console import Console

from outrider.cli.policy import print_lines
from outrider.cli.render import plain_console, receipt_table
from outrider.client import Client
from outrider.policy import SpeculationOptions, Traits, explain, read_excerpt
from outrider.receipts import disagreements
from outrider.v1 import generation_pb2 as pb


async def run_receipt(address: str, request_id: str, *, as_json: bool) -> None:
    """Ask for the receipts of a request and print them.

    Raises: grpc.aio.AioRpcError with NOT_FOUND if there is none, or none any more.
    """
    async with Client(address) as client:
        asked = pb.GetReceiptRequest(request_id=request_id)
        answer = await client.stub.GetReceipt(asked, timeout=10)
    console = plain_console()
    if as_json:
        told = MessageToDict(answer, preserving_proto_field_name=True)
        console.print_json(data=told)
        return
    for receipt in answer.receipts:
        print_receipt(console, receipt)


def print_receipt(console: Console, receipt: pb.Receipt) -> None:
    """Print the figures of a receipt, and its decision as it follows from them."""
    console.print(receipt_table(receipt))
    if receipt.policy.excerpt_json:
        excerpt = read_excerpt(receipt.policy.excerpt_json)
        traits = Traits.from_proto(receipt.traits)
        options = SpeculationOptions.from_proto(receipt.requested)
        print_lines(console, explain(excerpt, traits, options, receipt.request_id))
    for each in disagreements(receipt):
        console.print(f"does not agree with the rest: {each}", style="red", soft_wrap=True)
