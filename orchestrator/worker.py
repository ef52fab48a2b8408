"""One worker as the orchestrator sees it: what it is, and whether it can be relied on."""

import enum
from dataclasses import dataclass, field

import grpc

from orchestrator.breaker import Breaker
from orchestrator.patience import Patience
from orchestrator.step_time import StepTime
from outrider.identity import ModelIdentity, TokenizerFiles
from outrider.v1 import worker_pb2

MAX_FAILURES = 3  # in a row, before a worker is avoided for a while
VERIFIER_PAUSE_S = 30.0
DRAFTER_PAUSE_S = 2.0


class Role(enum.Enum):
    """What a worker does."""

    VERIFIER = "verifier"
    DRAFTER = "drafter"


class WorkerState(enum.Enum):
    """Whether a worker is used, and if not, why."""

    CONNECTING = "connecting"
    READY = "ready"
    SUSPECT = "suspect"  # failed again and again; others go first for a while
    REFUSED = "refused"
    LOST = "lost"


@dataclass(slots=True)
class Worker:
    """One worker process at one address; ``num_leases`` counts this orchestrator's own."""

    address: str
    role: Role
    channel: grpc.aio.Channel
    state: WorkerState = WorkerState.CONNECTING
    reason: str = "not reached yet"
    identity: ModelIdentity | None = None
    files: TokenizerFiles | None = None
    binding: int = worker_pb2.WORKER_BINDING_UNSPECIFIED
    target_weights_digest: str = ""
    """Of a draft head: the target whose hidden states it reads."""
    sources: tuple[str, ...] = ()
    max_draft_tokens: int = 0
    features: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """Of a drafter: layers whose hidden states its sources want, by source."""
    max_feature_layer: int | None = None
    """Of a verifier: the largest layer that it gives hidden states of; None: it gives none."""
    num_leases: int = 0
    overridden_targets: set[str] = field(default_factory=set)  # names; their templates differ
    refusals: dict[str, str] = field(default_factory=dict)  # by target name; "" is a fit
    canaries: dict[str, str] = field(default_factory=dict)  # by target key; "" has passed
    step_time: StepTime = field(default_factory=StepTime)
    patience: Patience = field(default_factory=Patience)
    is_leaving: bool = False  # its address is no longer named
    place: str = ""
    """What its address was found under; empty: it was named itself."""
    max_failures: int = MAX_FAILURES
    breaker: Breaker = field(init=False)

    def __post_init__(self) -> None:
        pause_s = VERIFIER_PAUSE_S if self.role is Role.VERIFIER else DRAFTER_PAUSE_S
        self.breaker = Breaker(self.max_failures, pause_s)

    @property
    def is_ready(self) -> bool:
        """True while the worker may be used."""
        return self.state in (WorkerState.READY, WorkerState.SUSPECT)

    def feature_layers(self, sources: tuple[str, ...]) -> tuple[int, ...]:
        """Return what the source wants that this drafter will choose of ``sources``."""
        return self.features.get(self.source_of(sources), ())

    def is_among(self, names: tuple[str, ...]) -> bool:
        """True if places or addresses name this worker; no names at all name every one."""
        return not names or self.address in names or self.place in names

    def source_of(self, sources: tuple[str, ...]) -> str:
        """Return the source that this drafter will choose of ``sources``; empty if it has none."""
        offered = [source for source in sources or self.sources if source in self.sources]
        return offered[0] if offered else ""

    def fail(self, reason: str, now: float, *, grave: bool = False) -> None:
        """The worker failed a request: after a few of these others go first for a while.

        One grave failure counts as many.
        """
        self.breaker.note_failure(now, weight=self.max_failures if grave else 1)
        if self.breaker.is_open and self.state is WorkerState.READY:
            self.state, self.reason = WorkerState.SUSPECT, reason

    def succeed(self) -> None:
        """The worker did its work."""
        self.breaker.note_success()
        if self.state is WorkerState.SUSPECT:
            self.state, self.reason = WorkerState.READY, ""

    def renew(self) -> None:
        """A new process answers at the address: nothing of the old one counts any more."""
        self.canaries.clear()
        self.patience.note_in_time()
        self.succeed()

    def lose(self, reason: str) -> None:
        """The worker cannot be reached or does not serve."""
        self.state, self.reason = WorkerState.LOST, reason
