"""What a packet is made from."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Inputs:
    """Files, and whether the built-in table is run, which needs torch.

    ``receipts``: logs of the run that is reported; ``baseline``: of one in which all were
    target-only; ``law``: JUnit XML of law tests; ``load``: what a load generator checked.
    """

    receipts: tuple[Path, ...]
    baseline: tuple[Path, ...] = ()
    audits: tuple[Path, ...] = ()
    law: tuple[Path, ...] = ()
    load: Path | None = None
    fixture: bool = True
