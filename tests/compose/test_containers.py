"""What the images promise: small, without root, on a root file system that cannot be written."""

import pytest

from tests.compose.deployment import CommandFailed, Deployment, command

pytestmark = [pytest.mark.compose, pytest.mark.asyncio(loop_scope="session")]

SERVICES = ("orchestrator", "openai", "verifier", "drafter")
MAX_TORCHLESS_BYTES = 250_000_000


@pytest.mark.parametrize("service", SERVICES)
async def test_nothing_runs_as_root_or_writes_its_image(
    deployment: Deployment, service: str
) -> None:
    (container, *_) = await deployment.containers(service)
    await deployment.healthy(container)
    assert (await deployment.inspect(container))["HostConfig"]["ReadonlyRootfs"]
    assert await command("docker", "exec", container, "id", "-u") == "10001\n"
    with pytest.raises(CommandFailed, match="Read-only file system"):
        await command("docker", "exec", container, "touch", "/opt/outrider/x")


@pytest.mark.parametrize("service", ["orchestrator", "openai"])
async def test_what_runs_no_model_needs_neither_torch_nor_much_room(service: str) -> None:
    image = f"outrider-{service}"
    size = int(await command("docker", "image", "inspect", "--format", "{{.Size}}", image))
    assert size < MAX_TORCHLESS_BYTES
    script = (
        "import importlib.util as u; print([u.find_spec(n) for n in ('torch', 'transformers')])"
    )
    found = await command("docker", "run", "--rm", "--entrypoint", "python", image, "-c", script)
    assert found.strip() == "[None, None]"
