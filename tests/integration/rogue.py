"""A drafter written by hand that says on the wire what no honest drafter says."""

import math
import struct
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

import grpc

from drafter_svc.__main__ import lookup_identity
from drafter_svc.settings import DrafterSettings
from outrider import wire
from outrider.serving.server import Register
from outrider.v1 import common_pb2, drafter_pb2, worker_pb2, worker_pb2_grpc
from outrider.worker import Capabilities, WorkerServicer
from tests.integration.scripted import Book, foretold

VOCAB_SIZE = 512


@dataclass(frozen=True, slots=True)
class Asked:
    """An advance, and what an honest drafter that knows the future would say."""

    cycle: int
    base_length: int
    path: tuple[int, ...]
    right: tuple[int, ...]

    def block(self, **changes: object) -> drafter_pb2.DraftBlock:
        """The honest answer with some fields replaced."""
        fields: dict[str, object] = {
            "base_length": self.base_length,
            "path_token_ids": self.path,
            "draft": common_pb2.Draft(token_ids=self.right, source="rogue"),
            "cache_length": self.base_length,
            "last": True,
            "cycle": self.cycle,
        }
        return drafter_pb2.DraftBlock(**(fields | changes))

    def draft(self, token_ids: list[int] | None = None, **fields: object) -> bytes:
        """An honest block around a draft that may be none."""
        ids = self.right if token_ids is None else token_ids
        draft = common_pb2.Draft(token_ids=ids, source="rogue", **fields)
        return respond(block=self.block(draft=draft))

    def empty(self, **changes: object) -> bytes:
        """The answer that there is nothing to propose."""
        return respond(block=self.block(draft=common_pb2.Draft(), **changes))

    def drawn_from(self, ids: list[int], counts: list[int]) -> bytes:
        """A right draft whose tokens all claim to be drawn from these counts."""
        packed_ids, packed_counts = struct.pack(f"<{len(ids)}I", *ids), b""
        packed_counts = struct.pack(f"<{len(counts)}H", *(count - 1 for count in counts))
        return self.packed(packed_ids, packed_counts)

    def packed(self, ids: bytes, counts: bytes) -> bytes:
        """A right draft with one packed distribution for every token."""
        one = common_pb2.TokenDistribution(ids=ids, counts=counts)
        return self.draft(distributions=[one] * len(self.right))


Trick = Callable[[Asked], list[bytes]]


def respond(**kind: object) -> bytes:
    """Return a response as it goes over the wire."""
    return drafter_pb2.DraftResponse(**kind).SerializeToString()


def needed(cycle: int, have_length: int) -> bytes:
    """Return a wish for more context."""
    lack = common_pb2.ContextNeeded(cycle=cycle, have_length=have_length)
    return respond(context_needed=lack)


FULL = wire.TOTAL_COUNT

# Drafts that the verifier must find invalid.
INVALID: Mapping[str, Trick] = {
    "id_of_vocabulary_size": lambda a: [a.draft([VOCAB_SIZE] * len(a.right))],
    "largest_int32": lambda a: [a.draft([2**31 - 1] * len(a.right))],
    "minus_one_as_uint32": lambda a: [a.draft([2**32 - 1] * len(a.right))],
    "illegal_id_behind_a_right_one": lambda a: [a.draft([*a.right[:-1], VOCAB_SIZE])],
    "counts_that_do_not_sum": lambda a: [a.drawn_from([*set(a.right)], [1] * len(set(a.right)))],
    "counts_that_sum_to_more": lambda a: [a.drawn_from([a.right[0], 511], [FULL, FULL])],
    "ids_without_counts": lambda a: [a.packed(struct.pack("<I", a.right[0]), b"")],
    "half_an_id": lambda a: [a.packed(b"\x01\x02\x03", b"\xff\xff")],
    "repeated_ids": lambda a: [a.drawn_from([a.right[0]] * 2, [FULL // 2] * 2)],
    "drawn_id_is_not_listed": lambda a: [a.drawn_from([a.right[0] ^ 1], [FULL])],
    "listed_id_beyond_vocabulary": lambda a: [
        a.drawn_from([*set(a.right), 2**31], [FULL - len(set(a.right)), *[1] * len(set(a.right))])
    ],
    "parents_in_a_circle": lambda a: [a.draft(parents=range(1, len(a.right) + 1))],
    "nan_margins": lambda a: [a.draft(logit_margins=[math.nan] * len(a.right))],
    "a_tree_with_a_margin_short": lambda a: [
        a.draft([*a.right, 7], parents=[-1] * (len(a.right) + 1), logit_margins=[1.0])
        if len(a.right) > 1  # cut to one token it would be whole
        else a.empty()
    ],
    "a_tree_with_a_distribution_short": lambda a: [
        a.draft(
            [a.right[0], 7, 8],
            parents=[-1, 0, -1],
            distributions=[common_pb2.TokenDistribution()] * 2,
        )
    ],
    "probes_that_are_too_many": lambda a: [a.draft(probe=[True] * (len(a.right) + 2))],
    "too_few_margins": lambda a: [a.draft(logit_margins=[1.0] * (len(a.right) + 3))],
    "too_many_distributions": lambda a: [
        a.draft(distributions=[common_pb2.TokenDistribution()] * (len(a.right) + 3))
    ],
}
# Messages that make no draft, or one that is as good as any.
HARMLESS: Mapping[str, Trick] = {
    "a_flat_tree": lambda a: [a.draft(parents=[-1] * len(a.right))],
    "a_tree_of_twins": lambda a: [a.draft([a.right[0]] * 4, parents=[-1, -1, 0, 1])],
    "longer_than_asked": lambda a: [a.draft([*a.right, *range(200)])],
    "a_hundred_thousand_tokens": lambda a: [a.draft([7] * 100_000)],
    "empty_list": lambda a: [a.empty()],
    "path_of_garbage": lambda a: [
        respond(block=a.block(path_token_ids=[2**32 - 1] * 1000, last=False)),
        respond(block=a.block(path_token_ids=[*a.path, 2**31], last=False)),
        a.empty(),
    ],
    "base_beyond_the_sequence": lambda a: [
        respond(block=a.block(base_length=2**32 - 1, last=False)),
        respond(block=a.block(base_length=a.base_length + 1, last=False)),
        a.empty(),
    ],
    "base_before_the_sequence": lambda a: [
        respond(block=a.block(base_length=0, path_token_ids=[], last=False)),
        a.empty(),
    ],
    "cache_longer_than_the_sequence": lambda a: [respond(block=a.block(cache_length=2**32 - 1))],
    "cache_lost": lambda a: [respond(block=a.block(cache_length=0))],
    "cycle_that_was_never_asked": lambda a: [
        respond(block=a.block(cycle=2**63, for_cycle=2**64 - 1)),
        needed(2**40, 3),
        a.empty(),
    ],
    "context_of_any_length": lambda a: [needed(a.cycle, 2**32 - 1)],
    "the_same_block_again_and_again": lambda a: [respond(block=a.block())] * 50,
    "opened_again": lambda a: [
        respond(opened=drafter_pb2.DraftOpened(source="x", incarnation="rogue")),
        a.empty(),
    ],
    "no_kind": lambda a: [b"", a.empty()],
}
# Answers behind which the stream is of no use.
FATAL: Mapping[str, Trick] = {
    "bytes_that_are_no_message": lambda a: [b"\xff\xff\xff\xff\x00garbage"],
    "text_that_is_no_utf8": lambda a: [
        respond(block=a.block(draft=common_pb2.Draft(token_ids=a.right, source="QQQQ"))).replace(
            b"QQQQ", b"\xff\xfe\xff\xfe"
        )
    ],
    "stream_that_ends": lambda a: [],
}
TRICKS = {**INVALID, **HARMLESS, **FATAL}


@dataclass(slots=True)
class Rogue:
    """Plays the trick that the request names as its draft source."""

    book: Book

    async def draft(
        self,
        request_iterator: AsyncIterator[drafter_pb2.DraftRequest],
        context: grpc.aio.ServicerContext,
    ) -> AsyncIterator[bytes]:
        """Answer every advance with a trick."""
        opening = (await anext(aiter(request_iterator))).open
        trick = TRICKS[opening.sources[0]]
        key = 0 if opening.mode == common_pb2.MODE_GREEDY else opening.noise_key
        ids: tuple[int, ...] = ()
        async for request in request_iterator:
            advance = request.advance
            ids = ids[: advance.start] + tuple(advance.token_ids)
            truth = self.book.truth(ids[: opening.num_prompt_tokens], key)
            rest = truth[len(ids) - opening.num_prompt_tokens :]
            path: tuple[int, ...] = ()
            if advance.HasField("pending"):
                path = foretold(rest, advance.pending.token_ids)
            right = rest[len(path) : len(path) + advance.max_draft_tokens]
            if not right:
                yield Asked(advance.cycle, len(ids), path, right).empty()
                continue
            responses = trick(Asked(advance.cycle, len(ids), path, right))
            for response in responses:
                yield response
            if not responses:
                return


@asynccontextmanager
async def open_rogue(book: Book) -> AsyncIterator[Register]:
    """A drafter service that offers every trick as a source."""
    rogue = Rogue(book)
    identity = replace(lookup_identity(DrafterSettings(name="rogue")), incarnation="rogue")
    capabilities = Capabilities(
        binding=worker_pb2.WORKER_BINDING_ANY_TARGET,
        modes=(),
        max_draft_tokens=64,
        max_sequences=256,
        sources=tuple(TRICKS),
    )
    worker = WorkerServicer(identity, None, capabilities, common_pb2.Load)
    handler = grpc.stream_stream_rpc_method_handler(
        rogue.draft, request_deserializer=drafter_pb2.DraftRequest.FromString
    )
    service = grpc.method_handlers_generic_handler("outrider.v1.DrafterService", {"Draft": handler})

    def register(server: grpc.aio.Server) -> None:
        server.add_generic_rpc_handlers((service,))
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(worker, server)

    yield register
