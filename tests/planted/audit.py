"""Audit the demo's models with a fault: ``python -m tests.planted.audit residual --quick``.

Further arguments go to ``outrider audit``; its exit status is this program's.
"""

import asyncio
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from outrider.checkpoints import prepare
from outrider.cli.stack import Service, StackOptions, run_stack
from tests.planted.faults import FAULTS

LOGS = Path("build/logs/planted")


async def run(fault: str, flags: Sequence[str]) -> int:
    """Start everything, audit, stop everything."""
    prepared = prepare()
    with tempfile.TemporaryDirectory(prefix="outrider-planted-") as folder:
        verifier = Service(
            "planted",
            "tests.planted.verifier",
            ("--fault", fault, "--model", str(prepared.target)),
            Path(folder),
            LOGS / "planted.log",
        )
        try:
            await verifier.start()
            await verifier.wait_ready(timeout_s=300)
            options = StackOptions(
                verifier_flags=(),
                drafter_flags=[("--model", str(prepared.best))],
                # The canary would find stale KV before the first request.
                orchestrator_flags=(
                    f"--verifier={verifier.address}",
                    "--no-canary",
                    "--min-step-timeout-s=60",
                ),
                log_folder=LOGS,
            )
            async with run_stack(options) as stack:
                where = ("--address", stack.orchestrator.address, "--target", str(prepared.target))
                command = (sys.executable, "-c", "from outrider.cli import main; main()", "audit")
                process = await asyncio.create_subprocess_exec(*command, *where, *flags)
                return await process.wait()
        finally:
            await verifier.stop()


if __name__ == "__main__":
    name, *others = sys.argv[1:] or [""]
    if name not in FAULTS:
        raise SystemExit(f"the fault must come first and be one of {', '.join(FAULTS)}")
    LOGS.mkdir(parents=True, exist_ok=True)
    raise SystemExit(asyncio.run(run(name, others)))
