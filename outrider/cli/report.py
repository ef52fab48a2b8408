"""``outrider report``: the release packet, from receipts and what else speaks for a release."""

from pathlib import Path

from outrider.cli.render import plain_console
from outrider.errors import InvalidField
from outrider.packet.inputs import Inputs

OK, FAILED = 0, 1  # exit statuses


def run_report(inputs: Inputs, out: Path) -> int:
    """Write the packet, print the three verdicts, return 1 if one of them is a failure.

    Raises: InvalidField naming a flag whose file cannot be used; OSError.
    """
    # Imported late: it needs packages that no other command does.
    try:
        from outrider.packet.page import write_packet
        from outrider.packet.reading import read_packet
    except ImportError as error:
        raise InvalidField("report", f"{error}; install outrider[report]") from error

    console = plain_console()
    packet = read_packet(inputs)
    page = write_packet(packet, out)
    views = {
        "correctness": packet.correctness,
        "eligibility": packet.eligibility,
        "operational value": packet.value,
    }
    for name, (verdict, why) in views.items():
        console.print(f"{name}: {verdict}: {why}", soft_wrap=True)
    console.print(f"written to {page}", soft_wrap=True)
    return FAILED if "fail" in {verdict for verdict, _ in views.values()} else OK
