"""Starts the drafter."""

import asyncio
import os
import sys
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

# Read once, when grpc is imported; gRPC's own lines are no JSON, and its errors reach us as codes.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc
import torch
from prometheus_client import CollectorRegistry

from drafter_svc.chain import ChainedSource
from drafter_svc.heads.hosting import host_head
from drafter_svc.heads.source import HeadSource
from drafter_svc.lookahead import LookaheadSource
from drafter_svc.lookup import NgramSource, SuffixSource
from drafter_svc.merged import MergedSource
from drafter_svc.model import DraftingHead, Masks, ModelSource
from drafter_svc.recycling import RecyclingSource
from drafter_svc.servicer import DrafterServicer
from drafter_svc.settings import DrafterSettings
from drafter_svc.source import Source
from outrider.constraint import Constraints
from outrider.distribution import HEAD_SIZE
from outrider.engine import Engine, LoadedModel
from outrider.heads.layouts import is_head_folder
from outrider.hosting import HostedModel, host_model, local_folder
from outrider.identity import IdentityDigests, ModelIdentity, Numerics, TokenizerFiles
from outrider.lookup.recycling import SaltedTables
from outrider.sampling import Mode
from outrider.serving.metrics import serving_metrics
from outrider.serving.process import run
from outrider.serving.server import Register
from outrider.serving.settings import parse_settings
from outrider.v1 import common_pb2, drafter_pb2_grpc, worker_pb2, worker_pb2_grpc
from outrider.worker import Capabilities, WorkerServicer, engine_load
from outrider.worker_metrics import WorkerMetrics

SERVICE_NAMES = ("outrider.v1.DrafterService", "outrider.v1.WorkerService")


@asynccontextmanager
async def open_drafter(settings: DrafterSettings) -> AsyncIterator[Register]:
    """Load the draft model where there is one; lookup is always offered."""
    suffix, tables = SuffixSource(), SaltedTables()
    recycling = (RecyclingSource(tables), RecyclingSource(tables, suffix))
    lookups: list[Source] = [NgramSource(), suffix, *recycling, LookaheadSource()]

    def make_head(vocab_size: int, loaded: LoadedModel) -> DraftingHead:
        ids = () if loaded.draft_head is None else loaded.draft_head.draft_ids
        draft_ids = torch.tensor(ids, device=loaded.device) if ids else None
        return DraftingHead(vocab_size, HEAD_SIZE, draft_ids=draft_ids)

    async with serving_metrics(settings) as registry, AsyncExitStack() as stack:
        if not settings.model:
            bound = Bound(lookup_identity(settings))
            yield _register(settings, _by_name(lookups), bound, registry)
            return
        folder = await asyncio.to_thread(local_folder, settings.model)
        if is_head_folder(folder):
            target = settings.target_model
            place = await asyncio.to_thread(local_folder, target) if target else None
            head = await stack.enter_async_context(host_head(settings, folder, place))
            own: Sequence[ModelSource | HeadSource] = head.sources
            bound = Bound(
                head.identity,
                worker_pb2.WORKER_BINDING_TARGET_WEIGHTS,
                head.files,
                target_weights_digest=head.target_weights_digest,
                device=head.device,
            )
        else:
            model = await stack.enter_async_context(host_model(settings, make_head))
            own = model_sources(model)
            bound = Bound(
                model.identity,
                worker_pb2.WORKER_BINDING_DRAFT_MODEL,
                model.files,
                engine=model.engine,
                device=model.engine.model.device,
            )
        chains = [ChainedSource(suffix, each) for each in own]
        trees = [MergedSource(recycling[-1], each) for each in own if each.makes_trees]
        sources = _by_name([*own, *lookups, *chains, *trees])
        yield _register(settings, sources, bound, registry)


@dataclass(frozen=True, slots=True)
class Bound:
    """What the drafter loaded, and what its drafts are bound to by that."""

    identity: ModelIdentity
    binding: worker_pb2.WorkerBinding = worker_pb2.WORKER_BINDING_ANY_TARGET
    files: TokenizerFiles | None = None
    target_weights_digest: str = ""
    engine: Engine | None = None
    device: torch.device | None = None

    def load(self, num_leases: int) -> common_pb2.Load:
        """Return the load of a drafter with so many leases."""
        if self.engine is None:
            return common_pb2.Load(num_running_reqs=num_leases)
        return engine_load(self.engine, num_leases)


def _by_name(sources: Sequence[Source]) -> dict[str, Source]:
    return {each.name: each for each in sources}


def model_sources(model: HostedModel) -> list[ModelSource]:
    """Return the ways in which the model drafts, the default first.

    One that was trained to draft in parallel can draft token after token as well.
    """
    longest, head = model.identity.max_context_length, model.engine.model.draft_head
    sources = [ModelSource(model.engine, longest)]
    if head is not None and head.num_parallel > 1:
        masks = Masks(head.num_parallel, head.mask_token_id)
        sources.insert(0, ModelSource(model.engine, longest, masks))
        sources.insert(1, ModelSource(model.engine, longest, replace(masks, makes_trees=True)))
    return sources


def lookup_identity(settings: DrafterSettings) -> ModelIdentity:
    """Return the identity of a drafter without a model: bound to nothing."""
    return ModelIdentity(
        name=settings.name or "lookup",
        revision=settings.revision,
        architecture="",
        digests=IdentityDigests(),
        tokenizer_probe_digest="",
        vocab_size=0,
        logits_size=0,
        max_context_length=0,
        eos_token_ids=(),
        bos_token_id=None,
        pad_token_id=None,
        numerics=Numerics(),
        incarnation=uuid.uuid4().hex,
    )


def _register(
    settings: DrafterSettings,
    sources: Mapping[str, Source],
    bound: Bound,
    registry: CollectorRegistry,
) -> Register:
    drafter = DrafterServicer(
        sources=sources,
        identity=bound.identity,
        max_draft_tokens=settings.max_draft_tokens,
        max_sequences=settings.max_sequences,
        constraints=None if bound.files is None else Constraints(bound.files.tokenizer()),
    )
    capabilities = Capabilities(
        binding=bound.binding,
        modes=tuple(Mode),
        max_draft_tokens=settings.max_draft_tokens,
        max_sequences=settings.max_sequences,
        sources=tuple(sources),
        features={
            name: source.feature_layers for name, source in sources.items() if source.feature_layers
        },
        target_weights_digest=bound.target_weights_digest,
    )
    worker = WorkerServicer(
        identity=bound.identity,
        files=bound.files,
        capabilities=capabilities,
        load=lambda: bound.load(drafter.num_leases),
    )
    registry.register(WorkerMetrics(lambda: drafter.num_leases, bound.engine, bound.device))

    def register(server: grpc.aio.Server) -> None:
        drafter_pb2_grpc.add_DrafterServiceServicer_to_server(drafter, server)
        worker_pb2_grpc.add_WorkerServiceServicer_to_server(worker, server)

    return register


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until a signal; returns the exit code."""
    settings = parse_settings(DrafterSettings, sys.argv[1:] if arguments is None else arguments)
    return run(
        settings,
        service="drafter",
        service_names=SERVICE_NAMES,
        open_service=lambda: open_drafter(settings),
    )


if __name__ == "__main__":
    raise SystemExit(main())
