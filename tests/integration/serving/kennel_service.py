"""A service process for test_process.py, with a few ways to go wrong."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # as every service does

import grpc
import structlog
from pydantic import Field
from pydantic_settings import SettingsConfigDict

from outrider.errors import OutriderError
from outrider.serving.process import run
from outrider.serving.server import Register
from outrider.serving.settings import ServiceSettings, parse_settings

NAME = "kennel.Kennel"


class KennelSettings(ServiceSettings):
    """Serves one dog."""

    model_config = SettingsConfigDict(env_prefix="KENNEL_", cli_prog_name="kennel")

    load_s: float = Field(default=0.0, ge=0, description="Seconds that loading takes.")
    wild: bool = Field(default=False, description="The dog cannot be loaded.")
    mortal_s: float = Field(default=0.0, ge=0, description="Seconds until a task fails; 0: never.")


async def walk(request: bytes, context) -> AsyncIterator[bytes]:
    yield b"step"
    await asyncio.sleep(float(request))
    yield b"home"


def register(server: grpc.aio.Server) -> None:
    handlers = {"Walk": grpc.unary_stream_rpc_method_handler(walk)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(NAME, handlers),))


async def die(after_s: float) -> None:
    await asyncio.sleep(after_s)
    raise ZeroDivisionError("the dog is gone")


@asynccontextmanager
async def open_kennel(settings: KennelSettings) -> AsyncIterator[Register]:
    await asyncio.sleep(settings.load_s)
    if settings.wild:
        raise OutriderError("the dog is wild")
    async with asyncio.TaskGroup() as tasks:
        if settings.mortal_s:
            tasks.create_task(die(settings.mortal_s))
        yield register
    structlog.get_logger().info("released")


if __name__ == "__main__":
    settings = parse_settings(KennelSettings, sys.argv[1:])
    sys.exit(
        run(
            settings,
            service="kennel",
            service_names=[NAME],
            open_service=lambda: open_kennel(settings),
        )
    )
