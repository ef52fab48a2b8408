"""WorkerService: identity, load and tokenizer files, the same at every worker."""

import hashlib
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import grpc

from outrider.identity import ModelIdentity, TokenizerFiles
from outrider.sampling import Mode
from outrider.v1 import common_pb2, worker_pb2, worker_pb2_grpc

CHUNK_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Capabilities:
    """What a worker can do, beside what it is."""

    binding: worker_pb2.WorkerBinding
    modes: tuple[Mode, ...]
    max_draft_tokens: int
    max_sequences: int
    sources: tuple[str, ...] = ()
    features: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Layers whose hidden states sources want, by source."""
    max_feature_layer: int | None = None
    """Of a verifier: the number of decoder layers; None: it gives no hidden states."""
    target_weights_digest: str = ""
    """Of a draft head: the target whose hidden states it reads."""


class Stats(Protocol):
    """The figures of an engine that a load report needs."""

    @property
    def num_waiting(self) -> int: ...
    @property
    def num_blocks_used(self) -> int: ...
    @property
    def num_blocks_free(self) -> int: ...
    @property
    def num_blocks_evictable(self) -> int: ...
    @property
    def num_prefix_hit_tokens(self) -> int: ...
    @property
    def num_prefix_looked_up_tokens(self) -> int: ...


class HasBlockSize(Protocol):
    """Settings of an engine, as far as its load goes."""

    @property
    def block_size(self) -> int: ...


class HasStats(Protocol):
    """An engine, as far as its load goes."""

    @property
    def settings(self) -> "HasBlockSize": ...
    def stats(self) -> Stats: ...


def engine_load(engine: HasStats, num_leases: int) -> common_pb2.Load:
    """Return the load of a worker whose leases share one engine."""
    stats = engine.stats()
    free = stats.num_blocks_free + stats.num_blocks_evictable
    return common_pb2.Load(
        num_running_reqs=num_leases,
        num_waiting_reqs=stats.num_waiting,
        token_usage=stats.num_blocks_used / max(stats.num_blocks_used + free, 1),
        free_kv_tokens=free * engine.settings.block_size,
        cache_hit_rate=stats.num_prefix_hit_tokens / max(stats.num_prefix_looked_up_tokens, 1),
    )


@dataclass(slots=True)
class WorkerServicer(worker_pb2_grpc.WorkerServiceServicer):
    """Answers what the orchestrator asks of every worker."""

    identity: ModelIdentity
    files: TokenizerFiles | None  # None where no tokenizer is loaded
    capabilities: Capabilities
    load: Callable[[], common_pb2.Load]

    async def GetIdentity(
        self, request: worker_pb2.GetIdentityRequest, context: grpc.aio.ServicerContext
    ) -> worker_pb2.GetIdentityResponse:
        """Return identity and capabilities."""
        able = self.capabilities
        return worker_pb2.GetIdentityResponse(
            identity=self.identity.to_proto(),
            binding=able.binding,
            sources=able.sources,
            modes=[mode.value for mode in able.modes],
            max_draft_tokens=able.max_draft_tokens,
            max_sequences=able.max_sequences,
            features={
                source: common_pb2.FeatureSpec(layers=layers)
                for source, layers in able.features.items()
            },
            max_feature_layer=able.max_feature_layer,
            target_weights_digest=able.target_weights_digest,
        )

    async def GetLoads(
        self, request: worker_pb2.GetLoadsRequest, context: grpc.aio.ServicerContext
    ) -> worker_pb2.GetLoadsResponse:
        """Return the present load."""
        return worker_pb2.GetLoadsResponse(load=self.load())

    async def GetTokenizer(
        self, request: worker_pb2.GetTokenizerRequest, context: grpc.aio.ServicerContext
    ) -> AsyncIterator[worker_pb2.GetTokenizerResponse]:
        """Stream every tokenizer file in chunks; the last chunk of a file carries its SHA-256."""
        contents = {} if self.files is None else self.files.contents
        for name, content in contents.items():
            digest = hashlib.sha256(content).hexdigest()
            starts = range(0, max(len(content), 1), CHUNK_BYTES)
            for start in starts:
                data = content[start : start + CHUNK_BYTES]
                sha256 = digest if start == starts[-1] else ""
                yield worker_pb2.GetTokenizerResponse(file_name=name, data=data, sha256=sha256)
