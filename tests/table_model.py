"""Workers whose model is a table: the next token's logits depend on the last two tokens alone.

Everything around the table is the real thing: servicers, leases, digests, the heads that draft and
decide, gRPC. What comes out can be worked out by hand.
"""

import asyncio
import uuid
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel

from drafter_svc.model import DraftingHead, ModelSource
from drafter_svc.servicer import DrafterServicer
from outrider.constraint import Constraints
from outrider.engine import CacheTooShort, EngineSettings, EngineStats, Finished, Head, JobInput
from outrider.identity import (
    IdentityDigests,
    ModelIdentity,
    Numerics,
    TokenizerFiles,
    tokenizer_digest,
    tokenizer_probe_digest,
)
from outrider.sampling import Mode
from outrider.serving.process import OpenService
from outrider.serving.server import Register
from outrider.v1 import drafter_pb2_grpc, verifier_pb2_grpc, worker_pb2, worker_pb2_grpc
from outrider.worker import Capabilities, WorkerServicer, engine_load
from tests.statistical.law import TableLaw
from verifier_svc.servicer import VerifierServicer
from verifier_svc.verification import VerificationHead

VOCAB_SIZE = 6
HEAD_SIZE = 3  # half of the ids are tail, so that the tail rule works
NUM_LISTED = 4  # drafts in RATIO are drawn from these; two ids are cut off
MAX_CONTEXT = 64
MAX_DRAFT_TOKENS = 16
MAX_SEQUENCES = 1024
NO_TOKEN = 0  # stands before the first token of a sequence


@dataclass(slots=True)
class TableCache:
    """The ids that were fed; what a KV cache would hold."""

    token_ids: list[int] = field(default_factory=list)
    committed_length: int = 0
    released: bool = False

    @property
    def length(self) -> int:
        """Positions that were fed."""
        return len(self.token_ids)

    def truncate(self, length: int) -> None:
        """Forget the positions from ``length`` on."""
        del self.token_ids[length:]
        self.committed_length = min(self.committed_length, self.length)

    def split_from(self, parent: "TableCache", length: int) -> None:
        """Begin with the first positions of another sequence.

        Raises: CacheTooShort if it does not hold them.
        """
        if length > parent.length:
            raise CacheTooShort(parent.length)
        self.token_ids = parent.token_ids[:length]
        self.committed_length = min(parent.committed_length, length)

    def commit(self, length: int) -> None:
        """Declare [0, length) final."""
        self.committed_length = max(self.committed_length, min(length, self.length))


@dataclass(slots=True)
class Waiting:
    """A job in the queue, and who waits for it."""

    job: Any
    given: JobInput
    future: "asyncio.Future[None]"


@dataclass(slots=True)
class TableEngine:
    """Takes the engine's place: the jobs of ``gather_s`` seconds make one pass."""

    law: TableLaw
    head: Head
    gather_s: float
    num_open: int = 0
    num_passes: int = 0
    num_rows: int = 0
    queue: list[Waiting] = field(default_factory=list)
    settings: EngineSettings = field(default_factory=EngineSettings)

    def open(self, *, salt: str) -> TableCache:
        """Return an empty cache."""
        self.num_open += 1
        return TableCache()

    def release(self, cache: TableCache) -> None:
        """Forget everything."""
        assert not cache.released
        cache.released = True
        cache.truncate(0)
        self.num_open -= 1

    def stats(self) -> EngineStats:
        """Return the counts; an open cache counts as one block."""
        return EngineStats(
            num_passes=self.num_passes,
            num_rows=self.num_rows,
            num_blocks_used=self.num_open,
            num_blocks_free=MAX_SEQUENCES - self.num_open,
            num_blocks_evictable=0,
            num_prefix_hit_tokens=0,
            num_prefix_looked_up_tokens=0,
            num_preemptions=0,
            num_running=0,
            num_waiting=len(self.queue),
            last_pass_ms=0.0,
            last_pass_rows=0,
        )

    async def run(self, job: Any) -> None:
        """Return when the head says that the job is done.

        Raises: CacheTooShort if the cache lacks what the job builds on.
        """
        given = job.start()
        if given.start > job.cache.length:
            raise CacheTooShort(job.cache.length)
        future = asyncio.get_running_loop().create_future()
        self._enqueue(Waiting(job, given, future))
        await future

    async def close(self) -> None:
        """Nothing runs between passes."""

    def _enqueue(self, waiting: Waiting) -> None:
        if not self.queue:
            asyncio.get_running_loop().call_later(self.gather_s, self._pass)
        self.queue.append(waiting)

    def _pass(self) -> None:
        """Feed every waiting job, let the head decide, queue again what wants more."""
        chosen = [waiting for waiting in self.queue if not waiting.future.done()]
        self.queue.clear()
        if not chosen:
            return
        try:
            with torch.inference_mode():
                self.head(self._feed(chosen))
        except Exception as error:  # whoever waits must hear of it
            for waiting in chosen:
                waiting.future.set_exception(error)
            return
        self.num_passes += 1
        for waiting in chosen:
            following, waiting.job.next = waiting.job.next, None
            if waiting.job.done:
                waiting.future.set_result(None)
            else:
                assert following is not None
                self._enqueue(Waiting(waiting.job, following, waiting.future))

    def _feed(self, chosen: Sequence[Waiting]) -> list[Finished]:
        contexts: list[tuple[int, int]] = []
        for waiting in chosen:
            given, cache = waiting.given, waiting.job.cache
            cache.truncate(given.start)
            cache.token_ids.extend(given.token_ids)
            cache.commit(given.committed)
            text = [NO_TOKEN, *cache.token_ids]
            ends = range(len(text) - given.num_logit_rows, len(text))
            contexts += [(text[end - 1], text[end]) for end in ends]
        self.num_rows += len(contexts)
        rows = torch.tensor(self.law.rows(np.array(contexts)), dtype=torch.float32)
        parts = torch.split(rows, [waiting.given.num_logit_rows for waiting in chosen])
        return [
            Finished(
                job=waiting.job,
                logits=logits,
                passes=1,
                queue_ms=0.0,
                compute_ms=0.0,
                rows_in_pass=len(contexts),
                cached_tokens=0,
            )
            for waiting, logits in zip(chosen, parts, strict=True)
        ]


def table_files() -> TokenizerFiles:
    """Return a tokenizer whose ids read as numbers."""
    words = {f"{i} ": i for i in range(VOCAB_SIZE)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="0 "))
    return TokenizerFiles({"tokenizer.json": tokenizer.to_str().encode()})


def table_identity(name: str, max_context_length: int = MAX_CONTEXT) -> ModelIdentity:
    """Return an identity whose weights are told by their name."""
    files = table_files()
    return ModelIdentity(
        name=name,
        revision="",
        architecture="Table",
        digests=IdentityDigests(tokenizer_digest(files), "", name),
        tokenizer_probe_digest=tokenizer_probe_digest(files),
        vocab_size=VOCAB_SIZE,
        logits_size=VOCAB_SIZE,
        max_context_length=max_context_length,
        eos_token_ids=(),
        bos_token_id=None,
        pad_token_id=None,
        numerics=Numerics("float32", "cpu", "table", True, HEAD_SIZE),
        incarnation=uuid.uuid4().hex,
    )


def _capabilities(binding: int, sources: tuple[str, ...]) -> Capabilities:
    return Capabilities(
        binding=binding,  # type: ignore[arg-type]
        modes=tuple(Mode),
        max_draft_tokens=MAX_DRAFT_TOKENS,
        max_sequences=MAX_SEQUENCES,
        sources=sources,
    )


def table_verifier(
    law: TableLaw,
    *,
    name: str = "table",
    gather_s: float = 0.0,
    max_context_length: int = MAX_CONTEXT,
) -> OpenService:
    """Return the opener of a verifier whose target is the table."""

    @asynccontextmanager
    async def open_service() -> AsyncIterator[Register]:
        engine = TableEngine(law, VerificationHead(VOCAB_SIZE, HEAD_SIZE), gather_s)
        identity = table_identity(name, max_context_length)
        verifier = VerifierServicer(
            engine=engine,  # type: ignore[arg-type]
            identity=identity,
            constraints=Constraints(table_files().tokenizer()),
            max_draft_tokens=MAX_DRAFT_TOKENS,
            max_sequences=MAX_SEQUENCES,
        )
        able = _capabilities(worker_pb2.WORKER_BINDING_TARGET, ())
        worker = WorkerServicer(identity, table_files(), able, verifier.load)

        def register(server: grpc.aio.Server) -> None:
            verifier_pb2_grpc.add_VerifierServiceServicer_to_server(verifier, server)
            worker_pb2_grpc.add_WorkerServiceServicer_to_server(worker, server)

        yield register

    return open_service


def table_drafter(
    law: TableLaw,
    *,
    name: str = "draft-table",
    gather_s: float = 0.0,
    max_context_length: int = MAX_CONTEXT,
    servicer: type[DrafterServicer] = DrafterServicer,
) -> OpenService:
    """Return the opener of a drafter whose draft model is the table."""

    @asynccontextmanager
    async def open_service() -> AsyncIterator[Register]:
        engine = TableEngine(law, DraftingHead(VOCAB_SIZE, HEAD_SIZE, NUM_LISTED), gather_s)
        identity = table_identity(name, max_context_length)
        source = ModelSource(engine, max_context_length)  # type: ignore[arg-type]
        drafter = servicer(
            sources={source.name: source},
            identity=identity,
            max_draft_tokens=MAX_DRAFT_TOKENS,
            max_sequences=MAX_SEQUENCES,
        )
        able = _capabilities(worker_pb2.WORKER_BINDING_DRAFT_MODEL, (source.name,))
        worker = WorkerServicer(
            identity, table_files(), able, lambda: engine_load(engine, drafter.num_leases)
        )

        def register(server: grpc.aio.Server) -> None:
            drafter_pb2_grpc.add_DrafterServiceServicer_to_server(drafter, server)
            worker_pb2_grpc.add_WorkerServiceServicer_to_server(worker, server)

        yield register

    return open_service
