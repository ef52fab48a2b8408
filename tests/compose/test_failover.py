"""Containers are killed and restarted under running streams."""

import asyncio

import grpc
import pytest

from outrider.client import Client, Output, generate_request
from outrider.sampling import SamplingParams
from tests.compose.deployment import Deployment, command, until
from tests.compose.load import streams
from tests.compose.requests import LAWS, QUESTIONS, Answers, Question, ask

pytestmark = [pytest.mark.compose, pytest.mark.asyncio(loop_scope="session")]

FEW = QUESTIONS[4:12]  # of both laws
PASSES = 'sum(outrider_engine_passes_total{job="drafter"})'


def num_failovers(outputs: list[Output]) -> int:
    return sum(output.complete.receipt.num_failovers for output in outputs)


async def test_streams_survive_the_kill_of_a_verifier(
    deployment: Deployment, answers: Answers
) -> None:
    await deployment.scale(verifier=2, drafter=1)
    async with streams(deployment.address, FEW, answers) as load:
        await load.wait(1)
        victim = (await deployment.containers("verifier"))[0]
        await command("docker", "kill", "--signal", "KILL", victim)
        await deployment.wait_workers(verifier=1, drafter=1)
        await load.wait(len(FEW))
    assert num_failovers(load.outputs) > 0
    await command("docker", "start", victim)
    await deployment.wait_workers(verifier=2, drafter=1)


async def test_streams_survive_the_kill_of_the_only_drafter(
    deployment: Deployment, answers: Answers
) -> None:
    await deployment.scale(verifier=2, drafter=1)
    async with streams(deployment.address, FEW, answers) as load:
        await load.wait(1)
        (victim,) = await deployment.containers("drafter")
        await command("docker", "kill", "--signal", "KILL", victim)
        await deployment.wait_workers(verifier=2)
        await load.wait(1)
        await command("docker", "start", victim)
        await deployment.wait_workers(verifier=2, drafter=1)
        before = await deployment.figure(PASSES)

        async def drafts_again() -> bool:
            return await deployment.figure(PASSES) > before

        await until(drafts_again)


@pytest.mark.slow
async def test_running_streams_finish_before_the_orchestrator_stops(
    deployment: Deployment, answers: Answers
) -> None:
    (container,) = await deployment.containers("orchestrator")
    async with Client(deployment.address) as client:
        running = [asyncio.create_task(ask(client, each, answers)) for each in FEW]
        await asyncio.sleep(0.5)
        await command("docker", "stop", "--time", "40", container)
        await asyncio.gather(*running)
    assert (await deployment.inspect(container))["State"]["ExitCode"] == 0
    await command("docker", "start", container)
    await deployment.serving()


async def resumed(client: Client, question: Question, begun: list[int], num_tokens: int) -> Output:
    """Go on behind the ids that came before the stream broke."""
    prompt = await client.tokenize([("user", question.prompt)])
    sampling = SamplingParams(
        max_tokens=num_tokens - len(begun), ignore_eos=True, **LAWS[question.law]
    )
    return await client.generate(generate_request([*prompt, *begun], sampling))


async def begin(client: Client, question: Question, num_tokens: int) -> list[int]:
    """Return the ids that came until the stream broke, which must be with UNAVAILABLE."""
    ids: list[int] = []

    async def read() -> None:
        async for response in client.stream(question.request(max_tokens=num_tokens)):
            ids.extend(response.chunk.token_ids)

    with pytest.raises(grpc.aio.AioRpcError) as broken:
        await read()
    assert broken.value.code() is grpc.StatusCode.UNAVAILABLE
    return ids


@pytest.mark.slow
async def test_a_client_goes_on_where_the_orchestrator_was_killed(
    deployment: Deployment, answers: Answers
) -> None:
    await deployment.wait_workers(verifier=2, drafter=1)
    (container,) = await deployment.containers("orchestrator")
    num_tokens = len(answers[FEW[0]])
    async with Client(deployment.address) as client:
        running = [asyncio.create_task(begin(client, each, num_tokens)) for each in FEW]
        await asyncio.sleep(0.6)
        await command("docker", "kill", "--signal", "KILL", container)
        begun = await asyncio.gather(*running)
        await command("docker", "start", container)
        await deployment.serving()
    assert any(begun)
    async with Client(deployment.address) as client:
        for question, ids in zip(FEW, begun, strict=True):
            output = await resumed(client, question, ids, num_tokens)
            assert ids + output.token_ids == answers[question]
