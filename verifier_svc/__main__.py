"""Starts the verifier."""

import os
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

# Read once, when grpc is imported; gRPC's own lines are no JSON, and its errors reach us as codes.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

import grpc

from outrider.constraint import Constraints
from outrider.distribution import HEAD_SIZE
from outrider.engine import LoadedModel
from outrider.hosting import UnusableModel, host_model
from outrider.sampling import Mode
from outrider.serving.metrics import serving_metrics
from outrider.serving.process import run
from outrider.serving.server import Register
from outrider.serving.settings import parse_settings
from outrider.v1 import verifier_pb2_grpc, worker_pb2, worker_pb2_grpc
from outrider.worker import Capabilities, WorkerServicer
from outrider.worker_metrics import WorkerMetrics
from verifier_svc.servicer import VerifierServicer
from verifier_svc.settings import VerifierSettings
from verifier_svc.verification import VerificationHead

SERVICE_NAMES = ("outrider.v1.VerifierService", "outrider.v1.WorkerService")


@asynccontextmanager
async def open_verifier(settings: VerifierSettings) -> AsyncIterator[Register]:
    """Load the target; ready once the self-test has run real passes."""

    def make_head(vocab_size: int, loaded: LoadedModel) -> VerificationHead:
        if loaded.draft_head is not None:
            raise UnusableModel(
                f"--model {settings.model}: a draft model, trained for a target; serve the target"
            )
        return VerificationHead(vocab_size, HEAD_SIZE)

    async with (
        serving_metrics(settings) as registry,
        host_model(settings, make_head) as model,
    ):
        verifier = VerifierServicer(
            engine=model.engine,
            identity=model.identity,
            constraints=Constraints(model.files.tokenizer()),
            max_draft_tokens=settings.max_draft_tokens,
            max_sequences=settings.max_sequences,
            max_feature_layer=model.engine.max_tap,
        )
        capabilities = Capabilities(
            binding=worker_pb2.WORKER_BINDING_TARGET,
            modes=tuple(Mode),
            max_draft_tokens=settings.max_draft_tokens,
            max_sequences=settings.max_sequences,
            max_feature_layer=verifier.max_feature_layer,
        )
        worker = WorkerServicer(
            identity=model.identity,
            files=model.files,
            capabilities=capabilities,
            load=verifier.load,
        )

        device = model.engine.model.device
        registry.register(WorkerMetrics(lambda: verifier.num_leases, model.engine, device))

        def register(server: grpc.aio.Server) -> None:
            verifier_pb2_grpc.add_VerifierServiceServicer_to_server(verifier, server)
            worker_pb2_grpc.add_WorkerServiceServicer_to_server(worker, server)

        yield register


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until a signal; returns the exit code."""
    settings = parse_settings(VerifierSettings, sys.argv[1:] if arguments is None else arguments)
    return run(
        settings,
        service="verifier",
        service_names=SERVICE_NAMES,
        open_service=lambda: open_verifier(settings),
    )


if __name__ == "__main__":
    raise SystemExit(main())
