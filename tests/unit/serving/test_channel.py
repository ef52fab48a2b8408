"""Reads of a worker are retried by the channel itself; what streams a sequence is not."""

from contextlib import suppress

import grpc
import pytest

from outrider.errors import Unavailable
from outrider.serving.channel import open_channel
from outrider.serving.server import ServiceServer
from outrider.v1 import verifier_pb2, verifier_pb2_grpc, worker_pb2, worker_pb2_grpc

NAMES = ("outrider.v1.WorkerService", "outrider.v1.VerifierService")


class Worker(worker_pb2_grpc.WorkerServiceServicer):
    """Answers after it failed this many times."""

    def __init__(self, num_failures: int) -> None:
        self.num_failures = num_failures
        self.num_calls = 0

    async def GetIdentity(self, request, context):
        self.num_calls += 1
        if self.num_calls <= self.num_failures:
            raise Unavailable("not yet")
        return worker_pb2.GetIdentityResponse(max_sequences=7)


class Verifier(verifier_pb2_grpc.VerifierServiceServicer):
    def __init__(self) -> None:
        self.num_calls = 0

    async def Verify(self, request_iterator, context):
        self.num_calls += 1
        raise Unavailable("draining")
        yield


@pytest.fixture
async def served():
    servers = []

    async def serve(worker: Worker, verifier: Verifier) -> str:
        def register(server: grpc.aio.Server) -> None:
            worker_pb2_grpc.add_WorkerServiceServicer_to_server(worker, server)
            verifier_pb2_grpc.add_VerifierServiceServicer_to_server(verifier, server)

        servers.append(ServiceServer(NAMES))
        address = await servers[-1].open()
        await servers[-1].ready(register)
        return address

    yield serve
    for server in servers:
        await server.drain(grace_s=0)


async def test_a_read_is_retried_until_the_worker_answers(served):
    worker = Worker(num_failures=2)
    async with open_channel(await served(worker, Verifier())) as channel:
        stub = worker_pb2_grpc.WorkerServiceStub(channel)
        answer = await stub.GetIdentity(worker_pb2.GetIdentityRequest(), timeout=10)
    assert (answer.max_sequences, worker.num_calls) == (7, 3)


async def test_retries_end(served):
    worker = Worker(num_failures=100)
    async with open_channel(await served(worker, Verifier())) as channel:
        stub = worker_pb2_grpc.WorkerServiceStub(channel)
        with pytest.raises(grpc.aio.AioRpcError, match="not yet"):
            await stub.GetIdentity(worker_pb2.GetIdentityRequest(), timeout=10)
    assert worker.num_calls == 4


async def test_a_lease_is_never_retried_by_the_channel(served):
    verifier = Verifier()
    async with open_channel(await served(Worker(0), verifier)) as channel:
        call = verifier_pb2_grpc.VerifierServiceStub(channel).Verify()
        with suppress(grpc.aio.AioRpcError):  # the refusal may be faster than the write
            await call.write(verifier_pb2.VerifyRequest())
        assert await call.code() is grpc.StatusCode.UNAVAILABLE
    assert verifier.num_calls == 1
