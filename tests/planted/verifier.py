"""A verifier with a fault: ``python -m tests.planted.verifier --fault residual --model ...``."""

import sys

from tests.planted.faults import FAULTS
from verifier_svc.__main__ import main


def run(arguments: list[str]) -> int:
    """Serve like any verifier, but for the fault."""
    flag, fault, *rest = arguments
    if flag != "--fault" or fault not in FAULTS:
        raise SystemExit(f"--fault must come first and be one of {', '.join(FAULTS)}")
    with FAULTS[fault]():
        return main(rest)


if __name__ == "__main__":
    raise SystemExit(run(sys.argv[1:]))
