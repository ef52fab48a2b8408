"""A drafter that does not fit joins behind the same name."""

import pytest

from outrider.client import Client
from tests.compose.conftest import Stranger
from tests.compose.deployment import Deployment
from tests.compose.requests import QUESTIONS, Answers, ask

pytestmark = [pytest.mark.compose, pytest.mark.asyncio(loop_scope="session")]


async def test_a_drafter_with_another_tokenizer_is_refused_by_name(
    deployment: Deployment, stranger: Stranger, answers: Answers
) -> None:
    await deployment.up("stranger")
    try:
        (refused,) = await deployment.wait_workers("refused", drafter=1)
        assert any(token in refused.reason for token in stranger.tokens), refused.reason
        async with Client(deployment.address) as client:
            await ask(client, QUESTIONS[0], answers)
    finally:
        await deployment.compose("rm", "--stop", "--force", "-v", "stranger")
    await deployment.wait_workers("refused")
