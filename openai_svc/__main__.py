"""Starts the OpenAI front door."""

import os
import sys
from collections.abc import Sequence
from importlib.util import find_spec

# Read once, when grpc is imported; gRPC's own lines are no JSON, and its errors reach us as codes.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

if not all(map(find_spec, ("starlette", "uvicorn"))):
    raise SystemExit("starlette and uvicorn are missing; pip install 'outrider[openai]'")

from openai_svc.observed import Observed
from openai_svc.server import serve
from openai_svc.servicer import FrontDoor
from openai_svc.settings import FrontDoorSettings
from outrider.client import Client
from outrider.serving.metrics import serving_metrics
from outrider.serving.process import run_to_end
from outrider.serving.settings import parse_settings


async def open_front_door(settings: FrontDoorSettings) -> None:
    """Serve until a signal, whether or not the orchestrator is there yet."""
    async with serving_metrics(settings) as registry, Client(settings.orchestrator) as client:
        door = FrontDoor(client, settings.timeout_s, settings.forward_header)
        await serve(Observed(door.app, registry), settings)


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until a signal; returns the exit code."""
    settings = parse_settings(FrontDoorSettings, sys.argv[1:] if arguments is None else arguments)
    return run_to_end(open_front_door(settings), settings, service="openai")


if __name__ == "__main__":
    raise SystemExit(main())
