"""The verifier side of one sequence: a lease on one verifier, and another one when it is lost."""

from collections.abc import Callable
from dataclasses import dataclass, field

import structlog

from orchestrator.feedback import NO_FEEDBACK, FeedbackWanted
from orchestrator.receipt import Stats
from orchestrator.request import Request
from orchestrator.sequence import Event, Sequence
from orchestrator.verdict import Verdict
from orchestrator.verify_lease import Loss, VerifierLost, VerifyLease
from orchestrator.worker import Worker
from orchestrator.workers import WorkerPool
from outrider.draft import Draft
from outrider.errors import InvalidField, ResourceExhausted, Unavailable

RETRY_AFTER_S = 1.0

Life = tuple[str, str]
"""Address and incarnation of a worker."""

log = structlog.get_logger()


def life_of(worker: Worker) -> Life:
    """Return which process a worker is; one that was started anew is another."""
    return worker.address, worker.identity.incarnation if worker.identity else ""


@dataclass(slots=True)
class LeasedVerification:
    """Implements ``orchestrator.decode.Verification`` over the worker pool.

    A verifier that fails is not tried again for this sequence unless it was started anew, or was
    only silent and the others failed as well. ``timeout_s`` tells what is left of the client's
    deadline.
    """

    request: Request
    pool: WorkerPool
    stats: Stats
    timeout_s: Callable[[], float | None]
    preferred: Worker | None = None
    """Goes first among equal verifiers, if it can be used."""
    worker: Worker | None = None
    lease: VerifyLease | None = None
    num_heals: int = 0
    wanted: FeedbackWanted = NO_FEEDBACK
    """Asked for in the present step."""
    _failed: dict[Life, Loss] = field(default_factory=dict)

    async def send(
        self, sequence: Sequence, draft: Draft, wanted: FeedbackWanted = NO_FEEDBACK
    ) -> None:
        """Send the step, opening a lease first where there is none.

        Raises: Unavailable if no equal verifier is left.
        """
        self.wanted = wanted
        while True:
            if self.lease is None:
                self._open(sequence)
            assert self.lease is not None
            try:
                return await self.lease.send(sequence, draft, wanted)
            except VerifierLost as lost:
                self._lose(sequence, lost)

    async def verdict(self, sequence: Sequence, draft: Draft) -> Verdict:
        """Wait for the verdict; a lost verifier is replaced and the step repeated there.

        Raises: Unavailable if no equal verifier is left.
        """
        while True:
            assert self.lease is not None
            try:
                verdict = await self.lease.verdict(sequence, draft)
                assert self.worker is not None
                self.worker.succeed()
                return verdict
            except VerifierLost as lost:
                self._lose(sequence, lost)
                await self.send(sequence, draft, self.wanted)

    def close(self) -> None:
        """End the lease."""
        if self.lease is not None:
            assert self.worker is not None
            self.num_heals += self.lease.ledger.num_heals
            self.worker.num_leases -= 1
            self.lease.close()
            self.lease = None

    def _open(self, sequence: Sequence) -> None:
        worker = self._choose()
        if worker is None:
            reason = self.pool.obstacle(self.request.target)
            raise Unavailable(reason, retry_after_s=RETRY_AFTER_S)
        self.lease = VerifyLease.open(worker, sequence, self.request, self.timeout_s())
        self.worker = worker
        worker.num_leases += 1
        sequence.apply(Event.VERIFIER_FOUND)

    def _choose(self) -> Worker | None:
        return self.pool.choose_verifier(
            self.request.target,
            {address for address, incarnation in self._failed if self._lives(address, incarnation)},
            salt=self.request.cache_salt,
            token_ids=self.request.prompt_ids,
            preferred=self.preferred,
        )

    def _lives(self, address: str, incarnation: str) -> bool:
        """True if the worker at an address is still the one that failed."""
        return any(
            life_of(worker) == (address, incarnation)
            for worker in self.pool.verifiers(self.request.target)
        )

    def _forgive(self) -> None:
        """Give those that were only silent, before the present one, another try."""
        *earlier, present = self._failed
        for life in earlier:
            if self._failed[life] is Loss.SILENT:
                del self._failed[life]
        self._failed[present] = Loss.GONE  # so that this ends

    def _lose(self, sequence: Sequence, lost: VerifierLost) -> None:
        """Give the lease up; the next send looks for an equal verifier.

        Raises: ResourceExhausted if a verifier without room was the last one; Unavailable if there
            is none left.
        """
        if lost.loss is Loss.REFUSED:
            raise InvalidField("request", lost.reason)  # another verifier would say the same
        assert self.worker is not None
        log.warning("verifier_lost", address=self.worker.address, reason=lost.reason)
        if lost.loss is not Loss.FULL:
            # One silence costs a request seconds: nobody else shall wait for this one.
            grave = lost.loss is Loss.SILENT
            self.worker.fail(lost.reason, self.pool.clock(), grave=grave)
        self._failed[life_of(self.worker)] = lost.loss
        self.close()
        sequence.apply(Event.VERIFIER_LOST)
        self.stats.num_failovers += 1
        others = self._choose()
        if others is None:
            self._forgive()
            others = self._choose()
        if others is None and lost.loss is Loss.FULL:
            raise ResourceExhausted(f"every verifier is full: {lost.reason}")
        if others is None:
            raise Unavailable(
                f"the verifier was lost and no equal one is ready: {lost.reason}",
                retry_after_s=RETRY_AFTER_S,
            )
