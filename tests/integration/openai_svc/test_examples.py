"""Every example runs against the stack that ``outrider up`` starts."""

import asyncio
import json
import os
import re
import shutil
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from google.protobuf.json_format import ParseDict
from google.protobuf.message_factory import GetMessageClass
from grpc_health.v1 import health_pb2

from outrider.cli.stack import Stack, StackOptions, run_stack
from outrider.v1 import generation_pb2 as pb

pytestmark = [
    pytest.mark.integration,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(240),  # four processes start, two of which import torch
]

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "examples"
SERVICES = {
    each.full_name: each
    for file in (pb, health_pb2)
    for each in file.DESCRIPTOR.services_by_name.values()
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def stack(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    options = StackOptions(
        verifier_flags=[("--model", str(toy), "--dtype", "float32", "--num-threads", "1")],
        drafter_flags=[()],
        openai_flags=(),
        log_folder=tmp_path_factory.mktemp("logs"),
        ready_timeout_s=200,
    )
    async with run_stack(options) as running:
        yield running
    assert all(each.process and each.process.returncode == 0 for each in running.services)


async def run(*command: str) -> str:
    process = await asyncio.create_subprocess_exec(
        *command,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    printed, _ = await process.communicate()
    assert process.returncode == 0, printed.decode()
    return printed.decode()


async def test_all_examples_are_run_here():
    known = {"async_client.py", "sync_client.py", "openai_client.py", "grpcurl.sh"}
    assert {path.name for path in EXAMPLES.iterdir() if path.is_file()} == known


async def test_the_python_clients(stack: Stack):
    address = stack.orchestrator.address
    printed = await run(sys.executable, str(EXAMPLES / "async_client.py"), address)
    assert "passes of the target were saved" in printed
    printed = await run(sys.executable, str(EXAMPLES / "sync_client.py"), address)
    assert "Ids are taken as they are." in printed
    assert "INVALID_ARGUMENT sampling_params.top_p: 2.0 is outside (0.0, 1.0]" in printed


async def test_the_client_of_openai(stack: Stack):
    assert stack.front_door is not None
    url = f"http://{stack.front_door.address}/v1"
    printed = await run(sys.executable, str(EXAMPLES / "openai_client.py"), url)
    assert re.search(r"^\d+ tokens$", printed, flags=re.MULTILINE)
    assert "'decision': " in printed


@pytest.mark.skipif(shutil.which("grpcurl") is None, reason="grpcurl is not installed")
async def test_the_shell(stack: Stack):
    printed = await run(str(EXAMPLES / "grpcurl.sh"), stack.orchestrator.address)
    assert re.search("finish_?reason", printed, flags=re.IGNORECASE)


def calls(page: Path) -> list[tuple[str, str, str]]:
    """Body, service and method of each line that calls with grpcurl."""
    pattern = r"^grpcurl .*-d '([^']*)' \S+ ([\w.]+)/(\w+)$"
    return re.findall(pattern, page.read_text(), flags=re.MULTILINE)


@pytest.mark.parametrize(("page", "least"), [("examples/grpcurl.sh", 6), ("docs/api.md", 1)])
async def test_what_a_shell_sends_is_a_message(page: str, least: int):
    """Where grpcurl is not installed as well: the lines fit the protos."""
    found = calls(ROOT / page)
    assert len(found) >= least
    for body, service, method in found:
        message = GetMessageClass(SERVICES[service].methods_by_name[method].input_type)
        ParseDict(json.loads(body), message())
