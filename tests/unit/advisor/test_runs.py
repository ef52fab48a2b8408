"""Runs over a stub that answers as it is told: what is lost is done anew, what is wrong is told."""

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field

import grpc
import pytest

from outrider.advisor.runs import MAX_ATTEMPTS, Runner, Setting
from outrider.v1 import generation_pb2 as pb


class Told(grpc.aio.AioRpcError):
    def __init__(self, code: grpc.StatusCode) -> None:
        super().__init__(code, grpc.aio.Metadata(), grpc.aio.Metadata(), "told")


@dataclass
class Scripted:
    """A client whose streams break with these codes, one after the other; then they answer."""

    breaks: Iterator[grpc.StatusCode]
    requests: list[pb.GenerateRequest] = field(default_factory=list)

    async def stream(
        self, request: pb.GenerateRequest, *, timeout_s: float
    ) -> AsyncIterator[pb.GenerateResponse]:
        self.requests.append(request)
        for ids in ([5], [6, 7]):
            yield pb.GenerateResponse(chunk=pb.GenerateChunk(token_ids=ids))
            code = next(self.breaks, None)
            if code is not None:
                raise Told(code)
        yield pb.GenerateResponse(complete=pb.GenerateComplete())


def runner(*breaks: grpc.StatusCode, **changed: object) -> tuple[Runner, Scripted]:
    client = Scripted(iter(breaks))
    return Runner(client, ["one", "two"], 8, **changed), client  # type: ignore[arg-type]


async def test_every_prompt_is_answered_and_as_many_again_as_there_are_streams():
    asked, client = runner()
    assert len((await asked.run(Setting(0.0, 1))).answers) == 2
    run = await asked.run(Setting(0.8, 3, "ngram", 4))
    assert [answer.token_ids for answer in run.answers] == [(5, 6, 7)] * 3
    assert [answer.num_later for answer in run.answers] == [2] * 3
    alone, drafted = client.requests[:2], client.requests[2:]
    assert all(each.speculation.target_only for each in alone)
    assert all(list(each.speculation.sources) == ["ngram"] for each in drafted)
    assert len({each.cache_salt for each in client.requests}) == 5, "nothing is shared"


async def test_a_lost_stream_lets_the_run_begin_anew():
    asked, client = runner(grpc.StatusCode.UNAVAILABLE)
    run = await asked.run(Setting(0.0, 1))
    assert [answer.token_ids for answer in run.answers] == [(5, 6, 7)] * 2
    assert len(client.requests) == 3


@pytest.mark.parametrize(
    ("code", "num_tries"),
    [(grpc.StatusCode.UNAVAILABLE, MAX_ATTEMPTS), (grpc.StatusCode.INVALID_ARGUMENT, 1)],
)
async def test_what_stays_wrong_is_told_as_it_is(code, num_tries):
    asked, client = runner(*[code] * 9)
    with pytest.raises(grpc.aio.AioRpcError, match="told"):
        await asked.run(Setting(0.0, 1))
    assert len(client.requests) == num_tries


async def test_prompts_are_texts_where_there_is_no_template():
    asked, client = runner(as_chat=False)
    await asked.run(Setting(0.0, 1))
    assert {each.text for each in client.requests} == {"one", "two"}
