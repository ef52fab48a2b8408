"""All workers, and which of them fit together."""

import enum
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from orchestrator.affinity import PrefixAffinity
from orchestrator.agreement import Agreements
from orchestrator.estimates import Estimates
from orchestrator.right_of_way import RightOfWay
from orchestrator.worker import Role, Worker, WorkerState
from outrider.errors import InvalidField, NotFound, Unavailable
from outrider.identity import (
    ModelIdentity,
    TokenizerFiles,
    template_differences,
    tokenizer_differences,
)
from outrider.sources import LOOKUP, NGRAM
from outrider.text import TextCodec
from outrider.v1 import worker_pb2

# The verifier that has read a prompt's beginning is chosen even if it is busier by this much.
AFFINITY_LEASES = 2
CANARY_PENDING = "its canary has not run yet"


class ServiceState(enum.Enum):
    """What clients can expect of the whole."""

    WAITING = "waiting"
    DEGRADED = "degraded"
    READY = "ready"


@dataclass(frozen=True, slots=True)
class Pair:
    """A target and a drafter; ``reason`` says why it is not used."""

    model: str
    drafter: Worker
    reason: str


@dataclass(frozen=True, slots=True)
class Target:
    """A target model: the identity that its verifiers share, and its text side."""

    identity: ModelIdentity
    files: TokenizerFiles
    codec: TextCodec

    @property
    def key(self) -> str:
        """The same for equal targets, whichever verifiers serve them."""
        identity = self.identity
        return repr((identity.name, identity.digests, identity.numerics))


@dataclass(slots=True)
class WorkerPool:
    """All known workers and the targets that the verifiers make up.

    ``template_overrides`` holds drafter addresses whose chat template may differ; ``may_grow`` says
    that workers may join later.
    """

    workers: list[Worker]
    template_overrides: frozenset[str] = frozenset()
    may_grow: bool = False
    has_canary: bool = False
    """A drafter is used only once it was seen to leave the output as it is."""
    targets: dict[str, Target] = field(default_factory=dict)
    clock: Callable[[], float] = time.monotonic
    affinity: PrefixAffinity = field(default_factory=PrefixAffinity)
    num_refusals: Counter[str] = field(default_factory=Counter)  # by address
    estimates: Estimates = field(default_factory=Estimates)
    agreements: Agreements = field(default_factory=Agreements)
    right_of_way: RightOfWay = field(default_factory=RightOfWay)

    def target(self, name: str) -> Target:
        """Return the named target, or the only one for an empty name.

        Raises: NotFound for an unknown name; Unavailable while no verifier is ready.
        """
        if not name and len(self.targets) == 1:
            return next(iter(self.targets.values()))
        if name in self.targets:
            return self.targets[name]
        if not self.targets:
            raise Unavailable("no verifier has been ready yet", retry_after_s=1.0)
        known = ", ".join(sorted(self.targets))
        raise NotFound(f"model: {name or '(empty)'} is not served; there is {known}")

    def verifiers(self, target: Target) -> Iterator[Worker]:
        """Yield the ready verifiers that serve the target: of its name and equal to it."""
        for worker in self.workers:
            if worker.role is not Role.VERIFIER or not worker.is_ready:
                continue
            identity = worker.identity
            if identity is None or identity.name != target.identity.name:
                continue
            if identity.is_equal_verifier(target.identity):
                yield worker

    def choose_verifier(
        self,
        target: Target,
        excluded: set[str],
        *,
        salt: str = "",
        token_ids: Sequence[int] = (),
        preferred: Worker | None = None,
    ) -> Worker | None:
        """Return an equal verifier outside ``excluded``, suspect ones last.

        The preferred one goes first, then the one that read the longest prefix of the ids, unless
        it is busier than the least loaded one by more than a few leases.
        """
        now = self.clock()
        able = [w for w in self.verifiers(target) if w.address not in excluded]
        trusted = [w for w in able if w.breaker.allows(now)] or able
        least = min(trusted, key=lambda worker: worker.num_leases, default=None)
        if least is None:
            return None
        by_address = {worker.address: worker for worker in trusted}
        known = by_address.get(self.affinity.find(salt, token_ids, by_address) or "", least)
        chosen = known if known.num_leases <= least.num_leases + AFFINITY_LEASES else least
        if preferred is not None and by_address.get(preferred.address) is preferred:
            chosen = preferred
        self.affinity.note(salt, token_ids, chosen.address)
        return chosen

    def max_draft_tokens(self, target: Target, *drafters: Worker) -> int:
        """Return the longest draft that these and every verifier of the target take."""
        workers = (*drafters, *self.verifiers(target))
        return min((worker.max_draft_tokens for worker in workers), default=0)

    def choose_drafter(
        self, target: Target, sources: tuple[str, ...], drafters: tuple[str, ...] = ()
    ) -> Worker | None:
        """Return the least loaded drafter that fits the target and offers one of the sources.

        ``drafters`` names those that may be chosen; empty: any.

        One that failed again and again is left alone for a while: drafts can be done without.
        """
        able = [
            worker
            for worker in self.workers
            if worker.role is Role.DRAFTER
            and worker.is_ready
            and worker.breaker.allows(self.clock())
            and (not sources or set(sources) & set(worker.sources))
            and worker.is_among(drafters)
            and worker.refusals.get(target.identity.name) == ""
        ]
        return min(able, key=lambda worker: worker.num_leases, default=None)

    def obstacle(self, target: Target | None = None) -> str:
        """Return why no verifier of a target, or of any, is ready, address by address."""
        name = None if target is None else target.identity.name
        reasons = [
            f"{worker.address}: {worker.reason or 'serves other weights now'}"
            for worker in self.workers
            if worker.role is Role.VERIFIER
            and (name is None or worker.identity is None or worker.identity.name == name)
        ]
        of = "" if name is None else f" of {name}"
        return f"no verifier{of} is ready" + "".join(f"; {each}" for each in reasons)

    def check_sources(self, sources: tuple[str, ...]) -> None:
        """Raise InvalidField if no drafter offers any of the sources, as far as all are known.

        A drafter that is lost still counts, since it may come back; one that was never reached
        might offer anything.
        """
        drafters = [worker for worker in self.workers if worker.role is Role.DRAFTER]
        if not sources or self.may_grow or any(not worker.binding for worker in drafters):
            return
        offered = {NGRAM, LOOKUP, *(source for worker in drafters for source in worker.sources)}
        if not offered & set(sources):
            known = ", ".join(sorted(offered))
            raise InvalidField("speculation.sources", f"{', '.join(sources)}: there is {known}")

    def pairs(self) -> list[Pair]:
        """Return every target with every drafter that was reached."""
        return [
            Pair(name, worker, worker.refusals[name])
            for name in self.targets
            for worker in self.workers
            if worker.role is Role.DRAFTER and name in worker.refusals
        ]

    def shortage(self) -> tuple[ServiceState, str]:
        """Return the state of the whole, and what is missing."""
        served = {n: t for n, t in self.targets.items() if any(self.verifiers(t))}
        if not served:
            return ServiceState.WAITING, "no verifier is ready"
        lost = sorted(self.targets.keys() - served.keys())
        if lost:
            return ServiceState.DEGRADED, f"no verifier of {', '.join(lost)} is ready"
        alone = [name for name, target in served.items() if not self.choose_drafter(target, ())]
        if alone:
            return ServiceState.DEGRADED, f"no drafter for {', '.join(alone)} is ready"
        return ServiceState.READY, ""

    def admit_verifier(self, worker: Worker) -> None:
        """Use a verifier whose identity and files are known.

        Refuse it beside a different one of its name.
        """
        assert worker.identity is not None
        assert worker.files is not None
        name = worker.identity.name
        present = self.targets.get(name)
        if present is not None and not worker.identity.is_equal_verifier(present.identity):
            if any(self.verifiers(present)):
                differing = _differing_fields(worker.identity, present.identity)
                self.refuse(worker, f"differs from the ready verifiers of {name} in {differing}")
                return
            present = None  # the old identity has nobody left: the name now means the new one
        if present is None:
            codec = TextCodec(worker.files)
            self.targets[name] = Target(worker.identity, worker.files, codec)
        worker.state, worker.reason = WorkerState.READY, ""
        self.pair_drafters()

    def lose(self, worker: Worker, reason: str) -> None:
        """Stop using a worker; one that was refused because of it is judged anew."""
        worker.lose(reason)
        for other in self.workers:
            judged = other.identity is not None and other.files is not None
            if other.role is Role.VERIFIER and other.state is WorkerState.REFUSED and judged:
                self.admit_verifier(other)

    def refuse(self, worker: Worker, reason: str) -> None:
        """Do not use a worker because of what it is; the same finding again counts once."""
        if (worker.state, worker.reason) != (WorkerState.REFUSED, reason):
            self.num_refusals[worker.address] += 1
        worker.state, worker.reason = WorkerState.REFUSED, reason

    def pair_drafters(self) -> None:
        """Judge every drafter whose identity is known against the targets."""
        for worker in self.workers:
            known = worker.state is not WorkerState.LOST and worker.binding
            if worker.role is Role.DRAFTER and known:
                self._pair(worker)

    def _pair(self, worker: Worker) -> None:
        worker.overridden_targets = set()
        worker.refusals = {
            name: self.mismatch(target, worker) or self._canary(target, worker)
            for name, target in self.targets.items()
        }
        reasons = list(worker.refusals.values())
        if not reasons:
            worker.state, worker.reason = WorkerState.CONNECTING, "no target to pair with yet"
        elif "" in reasons:
            worker.state, worker.reason = WorkerState.READY, ""
        elif CANARY_PENDING in reasons:
            worker.state, worker.reason = WorkerState.CONNECTING, CANARY_PENDING
        else:
            self.refuse(worker, reasons[0])

    def _canary(self, target: Target, worker: Worker) -> str:
        return worker.canaries.get(target.key, CANARY_PENDING) if self.has_canary else ""

    def unproven(self) -> list[tuple[Target, Worker]]:
        """Return pairs that fit and wait for their canary."""
        return [
            (self.targets[pair.model], pair.drafter)
            for pair in self.pairs()
            if pair.reason == CANARY_PENDING and any(self.verifiers(self.targets[pair.model]))
        ]

    def note_canary(self, target: Target, worker: Worker, objection: str) -> None:
        """Take note of what the canary of a pair came to."""
        worker.canaries[target.key] = objection
        self.pair_drafters()

    def mismatch(self, target: Target, worker: Worker) -> str:
        """Return why the drafter does not fit the target; empty if it does."""
        if worker.binding == worker_pb2.WORKER_BINDING_ANY_TARGET:
            return ""
        reads_target = worker.binding == worker_pb2.WORKER_BINDING_TARGET_WEIGHTS
        if worker.binding != worker_pb2.WORKER_BINDING_DRAFT_MODEL and not reads_target:
            return "the worker is not a drafter"
        assert worker.identity is not None
        assert worker.files is not None
        sides = (target.files, target.identity, worker.files, worker.identity)
        found = tokenizer_differences(*sides)
        weights = target.identity.digests.weights_digest
        if reads_target and worker.target_weights_digest != weights:
            made_for = worker.target_weights_digest or "a target that it does not name"
            found.append(f"weights: the head was made for {made_for}, the target has {weights}")
        template = template_differences(*sides)
        if template and worker.address in self.template_overrides:
            worker.overridden_targets.add(target.identity.name)
        else:
            found += template
        return "; ".join(found)


def _differing_fields(one: ModelIdentity, other: ModelIdentity) -> str:
    fields = (
        "digests",
        "tokenizer_probe_digest",
        "eos_token_ids",
        "vocab_size",
        "max_context_length",
        "numerics",
    )
    return ", ".join(name for name in fields if getattr(one, name) != getattr(other, name))
