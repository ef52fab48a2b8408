"""Workers join, leave and are replaced under running streams."""

import pytest

from tests.compose.deployment import Deployment, command, until
from tests.compose.load import streams
from tests.compose.requests import QUESTIONS, Answers

pytestmark = [
    pytest.mark.compose,
    pytest.mark.slow,
    pytest.mark.asyncio(loop_scope="session"),
]

PASSES = "outrider_engine_passes_total"


async def test_new_workers_get_work_and_no_stream_breaks(
    deployment: Deployment, answers: Answers
) -> None:
    await deployment.scale(verifier=1, drafter=1)
    async with streams(deployment.address, QUESTIONS, answers) as load:
        await load.wait(1)
        await deployment.scale(verifier=2, drafter=3)
        joined: dict[str, float] = {}

        async def all_scraped() -> bool:
            joined.update(await deployment.figures(PASSES, "instance"))
            return len(joined) == 5

        await until(all_scraped, timeout_s=60)

        async def all_work() -> bool:
            passes = await deployment.figures(PASSES, "instance")
            return all(passes[instance] > num for instance, num in joined.items())

        await until(all_work)


@pytest.mark.timeout(900)
async def test_all_workers_are_restarted_one_by_one_under_load(
    deployment: Deployment, answers: Answers
) -> None:
    await deployment.scale(verifier=2, drafter=3)
    verifiers = await deployment.containers("verifier")
    drafters = await deployment.containers("drafter")
    async with streams(deployment.address, QUESTIONS[6:10], answers, max_tokens=8) as load:
        for container in (*verifiers, *drafters):
            await load.wait(1)
            await command("docker", "restart", "--time", "40", container)
            await deployment.healthy(container)
            await deployment.wait_workers(verifier=2, drafter=3)
        await load.wait(1)
