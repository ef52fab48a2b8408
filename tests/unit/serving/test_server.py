"""A real server on a free port: error mapping, health, draining, cancellation, message limits."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest
from google.rpc.error_details_pb2 import RetryInfo
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from grpc_status import rpc_status

from outrider.errors import InvalidField, NotFound, ResourceExhausted, Unavailable
from outrider.serving.channel import open_channel
from outrider.serving.options import MAX_MESSAGE_BYTES
from outrider.serving.request_id import current_request_id
from outrider.serving.server import ServiceServer, Waiting

NAME = "kennel.Kennel"
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING

ERRORS = [
    (InvalidField("dog.age", "41 is above the limit 30"), grpc.StatusCode.INVALID_ARGUMENT),
    (NotFound("no such dog"), grpc.StatusCode.NOT_FOUND),
    (ResourceExhausted("the kennel is full"), grpc.StatusCode.RESOURCE_EXHAUSTED),
    (Unavailable("no dog is awake"), grpc.StatusCode.UNAVAILABLE),
    (ExceptionGroup("tasks", [NotFound("no such dog")]), grpc.StatusCode.NOT_FOUND),
]


class Kennel:
    """Handlers of all four kinds that speak bytes, so that no proto is needed."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.started = asyncio.Event()
        self.finish = asyncio.Event()
        self.released = asyncio.Event()

    async def bark(self, request: bytes, context) -> bytes:
        if self.error:
            raise self.error
        return request or current_request_id().encode()

    async def gather(self, requests: AsyncIterator[bytes], context) -> bytes:
        return b"".join([request async for request in requests])

    async def walk(self, request: bytes, context) -> AsyncIterator[bytes]:
        try:
            self.started.set()
            yield b"step"
            if self.error:
                raise self.error
            await self.finish.wait()
            yield b"home"
        finally:
            self.released.set()

    async def run(self, request: bytes, context) -> AsyncIterator[bytes]:
        """Endless: a cancel arrives while a message is being written."""
        try:
            while True:
                self.started.set()
                yield b"x" * 4096
        finally:
            await asyncio.sleep(0.01)  # releasing takes a moment, and is waited for
            self.released.set()

    async def fetch(self, requests: AsyncIterator[bytes], context) -> AsyncIterator[bytes]:
        async for request in requests:
            if self.error:
                raise self.error
            yield request

    async def howl(self, request: bytes, context) -> None:
        await context.write(b"a")
        await context.write(b"u")

    async def feed(self, request: health_pb2.HealthCheckRequest, context) -> bytes:
        return b"full"

    async def fill(
        self, requests: AsyncIterator[health_pb2.HealthCheckRequest], context
    ) -> AsyncIterator[bytes]:
        async with asyncio.TaskGroup():
            async for _ in requests:
                yield b"full"

    def register(self, server: grpc.aio.Server) -> None:
        handlers = {
            "Bark": grpc.unary_unary_rpc_method_handler(self.bark),
            "Gather": grpc.stream_unary_rpc_method_handler(self.gather),
            "Walk": grpc.unary_stream_rpc_method_handler(self.walk),
            "Run": grpc.unary_stream_rpc_method_handler(self.run),
            "Fetch": grpc.stream_stream_rpc_method_handler(self.fetch),
            "Feed": grpc.unary_unary_rpc_method_handler(
                self.feed, health_pb2.HealthCheckRequest.FromString
            ),
            "Fill": grpc.stream_stream_rpc_method_handler(
                self.fill, health_pb2.HealthCheckRequest.FromString
            ),
            "Howl": grpc.unary_stream_rpc_method_handler(self.howl),
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(NAME, handlers),))


class House:
    """A kennel, its server and a channel to it."""

    def __init__(self, server: ServiceServer, channel: grpc.aio.Channel) -> None:
        self.server = server
        self.channel = channel
        self.kennel = Kennel()

    async def ready(self) -> None:
        await self.server.ready(self.kennel.register)

    def bark(self, request: bytes = b"", **options):
        return self.channel.unary_unary(f"/{NAME}/Bark")(request, **options)

    def walk(self, request: bytes = b"", **options):
        return self.channel.unary_stream(f"/{NAME}/Walk")(request, **options)

    def fetch(self, *requests: bytes):
        return self.channel.stream_stream(f"/{NAME}/Fetch")(iter(requests))

    async def health(self, service: str = NAME) -> int:
        stub = health_pb2_grpc.HealthStub(self.channel)
        return (await stub.Check(health_pb2.HealthCheckRequest(service=service))).status


@asynccontextmanager
async def opened_house() -> AsyncIterator[House]:
    server = ServiceServer([NAME])
    address = await server.open()
    async with open_channel(address) as channel:
        yield House(server, channel)
    await server.drain(grace_s=0)


@pytest.fixture
async def loading_house():
    async with opened_house() as house:
        yield house


@pytest.fixture
async def house():
    async with opened_house() as house:
        await house.ready()
        yield house


async def consume(call) -> None:
    if not hasattr(call, "__aiter__"):
        await call
        return
    async for _ in call:
        pass


async def status_of(call) -> grpc.aio.AioRpcError:
    with pytest.raises(grpc.aio.AioRpcError) as error_info:
        await consume(call)
    return error_info.value


CALLS = {
    "unary": lambda house: house.bark(),
    "unary_stream": lambda house: house.walk(),
    "stream_stream": lambda house: house.fetch(b"ball"),
}


@pytest.mark.parametrize("kind", CALLS)
@pytest.mark.parametrize(("error", "code"), ERRORS)
async def test_a_meant_error_becomes_its_code_and_message(house, log_events, kind, error, code):
    house.kennel.error = error
    status = await status_of(CALLS[kind](house))
    leaf = error.exceptions[0] if isinstance(error, ExceptionGroup) else error
    assert (status.code(), status.details()) == (code, str(leaf))
    assert [(event["event"], event["code"]) for event in log_events] == [("rpc_failed", code.name)]


@pytest.mark.parametrize("kind", CALLS)
@pytest.mark.parametrize(
    "error", [ZeroDivisionError("secret"), ExceptionGroup("x", [NotFound("a"), KeyError("secret")])]
)
async def test_a_bug_becomes_internal_and_tells_nothing(house, log_events, kind, error):
    house.kennel.error = error
    status = await status_of(CALLS[kind](house))
    assert status.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in status.details()
    [event] = log_events
    assert (event["event"], event["exc_info"]) == ("rpc_failed", error)
    assert event["request_id"] in status.details()


@pytest.mark.parametrize("kind", CALLS)
async def test_retry_info_travels(house, kind):
    house.kennel.error = Unavailable("asleep", retry_after_s=1.5)
    status = await status_of(CALLS[kind](house))
    [detail] = rpc_status.from_call(status).details
    retry = RetryInfo()
    assert detail.Unpack(retry)
    assert retry.retry_delay.ToTimedelta().total_seconds() == 1.5


async def test_a_handler_may_abort_by_itself(loading_house, log_events):
    async def bark(request, context):
        await context.abort(grpc.StatusCode.ALREADY_EXISTS, "twice")

    loading_house.kennel.bark = bark
    await loading_house.ready()
    status = await status_of(loading_house.bark())
    assert (status.code(), status.details()) == (grpc.StatusCode.ALREADY_EXISTS, "twice")
    assert log_events == []


async def test_every_kind_of_handler_passes_messages(house):
    assert await house.bark(b"wau") == b"wau"
    gather = house.channel.stream_unary(f"/{NAME}/Gather")
    assert await gather(iter([b"a", b"b"])) == b"ab"
    assert [each async for each in house.fetch(b"a", b"b")] == [b"a", b"b"]
    howl = house.channel.unary_stream(f"/{NAME}/Howl")
    assert [each async for each in howl(b"")] == [b"a", b"u"]
    house.kennel.finish.set()
    assert [each async for each in house.walk()] == [b"step", b"home"]


async def test_the_request_id_is_the_callers_or_a_new_one(house, log_events):
    assert await house.bark(metadata=(("x-request-id", "r-1"),)) == b"r-1"
    assert len({await house.bark() for _ in range(3)}) == 3
    house.kennel.error = NotFound("no")
    await status_of(house.bark(metadata=(("x-request-id", "r-2"),)))
    [event] = log_events
    assert (event["request_id"], event["rpc"]) == ("r-2", f"/{NAME}/Bark")


async def test_an_endless_request_id_is_refused(house):
    status = await status_of(house.bark(metadata=(("x-request-id", "r" * 200),)))
    assert status.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "x-request-id: 200 characters, at most 128" in status.details()


async def test_an_unknown_method_is_unimplemented(house):
    status = await status_of(house.channel.unary_unary(f"/{NAME}/Meow")(b""))
    assert status.code() is grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.parametrize("kind", CALLS)
async def test_while_loading_rpcs_are_unavailable_and_health_says_so(loading_house, kind):
    assert await loading_house.health() == NOT_SERVING
    assert await loading_house.health("") == NOT_SERVING
    status = await status_of(CALLS[kind](loading_house))
    assert (status.code(), status.details()) == (
        grpc.StatusCode.UNAVAILABLE,
        "the service is loading",
    )


@pytest.mark.parametrize(
    ("service", "method", "message"),
    [
        ("kennel.Kennel", "Feed", "HealthCheckRequest"),
        ("kennel.Kennel", "Fill", "HealthCheckRequest"),
        ("grpc.health.v1.Health", "Check", "HealthCheckRequest"),
        ("grpc.health.v1.Health", "Watch", "HealthCheckRequest"),
        ("grpc.reflection.v1alpha.ServerReflection", "ServerReflectionInfo", "ServerReflectionReq"),
    ],
)
async def test_bytes_that_are_no_message_are_an_invalid_argument(house, service, method, message):
    garbage = b"\xff\xff"
    call = house.channel.stream_stream(f"/{service}/{method}")(iter([garbage]))
    status = await status_of(call)
    assert status.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert status.details().startswith(f"request: the bytes are no valid {message}")


async def test_a_service_that_waits_answers_early_rpcs_and_says_what_it_waits_for(loading_house):
    arrived, reasons = asyncio.Event(), iter(["no bone", "no ball"])
    waiting = Waiting(
        loading_house.kennel.register,
        frozenset({f"/{NAME}/Bark"}),
        lambda: next(reasons),
        arrived.wait,
    )
    ready = asyncio.create_task(loading_house.server.ready(waiting))
    await asyncio.sleep(0)
    assert await loading_house.bark(b"wau") == b"wau"
    for reason in ("no bone", "no ball"):
        status = await status_of(loading_house.walk())
        assert (status.code(), status.details()) == (grpc.StatusCode.UNAVAILABLE, reason)
    assert await loading_house.health() == NOT_SERVING
    arrived.set()
    await ready
    assert await loading_house.health() == SERVING
    assert [each async for each in loading_house.fetch(b"a")] == [b"a"]


async def test_health_turns_to_serving_when_ready(loading_house):
    await loading_house.ready()
    assert await loading_house.health() == SERVING
    assert await loading_house.health("") == SERVING
    status = await status_of(
        health_pb2_grpc.HealthStub(loading_house.channel).Check(
            health_pb2.HealthCheckRequest(service="cattery.Cattery")
        )
    )
    assert status.code() is grpc.StatusCode.NOT_FOUND


async def test_reflection_lists_the_services(house):
    stub = reflection_pb2_grpc.ServerReflectionStub(house.channel)
    request = reflection_pb2.ServerReflectionRequest(list_services="")
    [response] = [each async for each in stub.ServerReflectionInfo(iter([request]))]
    names = {service.name for service in response.list_services_response.service}
    assert names >= {NAME, "grpc.health.v1.Health"}


async def test_draining_lets_running_rpcs_finish_and_refuses_new_ones(house):
    walk = house.walk()
    assert await walk.read() == b"step"
    drain = asyncio.create_task(house.server.drain(grace_s=30))
    await asyncio.sleep(0)  # the task has its turn before any RPC is answered
    assert await house.health() == NOT_SERVING
    assert await house.health("") == NOT_SERVING
    status = await status_of(house.bark(b"wau"))
    assert (status.code(), status.details()) == (
        grpc.StatusCode.UNAVAILABLE,
        "the service is draining",
    )
    assert not drain.done()
    house.kennel.finish.set()
    assert await walk.read() == b"home"
    await asyncio.wait_for(drain, 5)
    assert (await status_of(house.bark(timeout=1))).code() is grpc.StatusCode.UNAVAILABLE


async def test_the_end_of_the_grace_period_cancels_what_still_runs(house):
    walk = house.walk()
    assert await walk.read() == b"step"
    await house.server.drain(grace_s=0.05)
    assert house.kennel.released.is_set()
    assert await walk.code() is grpc.StatusCode.UNAVAILABLE
    assert await walk.details() == "the service is shutting down"


async def test_hurry_ends_the_grace_period(house):
    walk = house.walk()
    assert await walk.read() == b"step"
    hurry = asyncio.Event()
    drain = asyncio.create_task(house.server.drain(grace_s=3600, hurry=hurry))
    await asyncio.sleep(0)
    hurry.set()
    await asyncio.wait_for(drain, 5)
    assert house.kennel.released.is_set()


async def test_a_cancelled_rpc_releases_and_is_no_failure(house, log_events):
    walk = house.walk()
    assert await walk.read() == b"step"
    walk.cancel()
    await asyncio.wait_for(house.kennel.released.wait(), 5)
    await asyncio.sleep(0.01)
    assert house.server.num_running == 0
    assert log_events == []


async def test_a_deadline_releases_and_is_no_failure(house, log_events):
    assert (await status_of(house.walk(timeout=0.2))).code() is grpc.StatusCode.DEADLINE_EXCEEDED
    await asyncio.wait_for(house.kennel.released.wait(), 5)
    assert log_events == []


async def test_stopping_in_the_middle_of_a_write_waits_for_the_release(house):
    run = house.channel.unary_stream(f"/{NAME}/Run")(b"")
    await house.kennel.started.wait()
    await asyncio.sleep(0.05)  # nobody reads, so the handler is held up in a write
    await house.server.drain(grace_s=0)
    assert house.kennel.released.is_set()
    run.cancel()


async def test_a_cancel_in_the_middle_of_a_write_releases_and_is_no_failure(house, log_events):
    for num_messages in range(20):
        house.kennel.released.clear()
        run = house.channel.unary_stream(f"/{NAME}/Run")(b"")
        for _ in range(num_messages + 1):
            await run.read()
        run.cancel()
        await asyncio.wait_for(house.kennel.released.wait(), 5)
    await asyncio.sleep(0.01)
    assert house.server.num_running == 0
    assert log_events == []


async def test_large_messages_pass_up_to_the_limit_in_both_directions(house):
    message = bytes(MAX_MESSAGE_BYTES)
    assert await house.bark(message) == message


async def test_the_channel_refuses_to_send_more_than_the_limit(house):
    status = await status_of(house.bark(bytes(MAX_MESSAGE_BYTES + 1)))
    assert status.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert "Sent message larger than max" in status.details()


async def test_the_server_refuses_to_receive_more_than_the_limit():
    server = ServiceServer([NAME])
    address = await server.open()
    kennel = Kennel()
    await server.ready(kennel.register)
    unlimited = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]
    async with grpc.aio.insecure_channel(address, options=unlimited) as channel:
        bark = channel.unary_unary(f"/{NAME}/Bark")
        status = await status_of(bark(bytes(MAX_MESSAGE_BYTES + 1)))
        assert status.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "Received message larger than max" in status.details()
        assert await bark(b"still here") == b"still here"
    await server.drain(grace_s=0)


async def test_a_taken_port_is_refused():
    first = ServiceServer([NAME])
    port = int((await first.open()).rpartition(":")[2])
    with pytest.raises(OSError, match=f"127.0.0.1:{port}: the port is taken"):
        await ServiceServer([NAME], port=port).open()
    await first.drain(grace_s=0)
