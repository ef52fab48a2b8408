"""A draft lease: one open stream to one drafter for one sequence; blocks go to the draft board."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import grpc

from orchestrator.board import DraftBlock, DraftBoard
from orchestrator.deadline import Deadline
from orchestrator.estimates import DraftCost
from orchestrator.feedback import NO_FEEDBACK, FeedbackWanted
from orchestrator.kept_features import KeptFeatures, StepFeatures
from orchestrator.kv_ledger import KVLedger
from orchestrator.patience import Patience
from orchestrator.request import Request
from orchestrator.sequence import Sequence
from orchestrator.worker import Worker
from outrider.continuations import MAX_CONTINUATIONS
from outrider.draft import Draft
from outrider.sampling import Mode, drafter_key
from outrider.serving.request_id import request_id_metadata
from outrider.v1 import common_pb2, drafter_pb2, drafter_pb2_grpc

MAX_TAUGHT = 8  # verdicts whose continuations wait for the next advance; older ones are dropped
WRITE_TIMEOUT_S = 1.0  # a drafter that does not read must not hold up the verification


@dataclass(frozen=True, slots=True)
class Asked:
    """The advance that is being answered."""

    cycle: int
    base_length: int
    pending: tuple[int, ...] | None
    for_cycle: int | None
    asked_s: float
    num_outcomes: int = 1
    outcomes: frozenset[tuple[int, ...]] | None = None
    """What may follow the base in the outcomes that blocks will come for, once that was told."""
    will_tell: bool = False
    """Outcomes are yet to be told: until then each may be among them."""
    reads_prompt: bool = False

    def can_become(self, after: tuple[int, ...]) -> bool:
        """True if a block for the base with these ids behind it may still come."""
        if self.pending is None:
            return not after
        if self.outcomes is not None:
            return after in self.outcomes
        if self.will_tell:
            return bool(after) and after[:-1] == self.pending[: len(after) - 1]
        return len(after) == len(self.pending) + 1 and after[:-1] == self.pending


@dataclass(slots=True)
class GrpcDraftLease:
    """Writes advances, reads blocks in a task of its own, keeps the ledger of the drafter's KV.

    The ledger starts every advance at what the drafter last stated, so ids of an advance that a
    newer one replaced are sent again; the drafter keeps the rows whose ids are equal.
    """

    call: grpc.aio.StreamStreamCall
    board: DraftBoard
    opening: drafter_pb2.DraftOpen
    worker: Worker
    clock: Callable[[], float] = time.monotonic
    binds_cycles: bool = False
    """RATIO: a block serves one cycle, and is used whole."""
    ledger: KVLedger = field(default_factory=KVLedger)
    asked: Asked | None = None
    num_advances: int = 0
    feedback_wanted: FeedbackWanted = NO_FEEDBACK
    """By the drafter: layers as it told before, then all as it says itself."""
    taught: list[common_pb2.Continuations] = field(default_factory=list)
    features: KeptFeatures = field(default_factory=KeptFeatures)
    tells_outcomes: bool = False
    """The source prepares several outcomes and tells which; not all do."""
    lost_reason: str = ""
    reader: "asyncio.Task[None] | None" = None
    cost: DraftCost = field(default_factory=DraftCost)
    """Learns what the drafter says that its blocks took."""
    deadline: Deadline = field(default_factory=Deadline)

    @classmethod
    def open(
        cls,
        worker: Worker,
        sequence: Sequence,
        request: Request,
        board: DraftBoard,
        timeout_s: float | None,
        cost: DraftCost,
    ) -> "GrpcDraftLease":
        """Start the stream; ``timeout_s`` is what the client's deadline leaves."""
        identity = request.target.identity
        opening = drafter_pb2.DraftOpen(
            sequence_id=sequence.sequence_id,
            sampling=request.sampling.to_proto(),
            mode=request.mode.value,
            noise_key=drafter_key(request.mode, request.sampling.key),
            sources=request.plan.sources,
            target=identity.digests.to_proto(),
            cache_salt=request.cache_salt,
            num_prompt_tokens=len(request.prompt_ids),
            vocab_size=identity.vocab_size,
        )
        stub = drafter_pb2_grpc.DrafterServiceStub(worker.channel)
        call = stub.Draft(timeout=timeout_s, metadata=request_id_metadata(request.request_id))
        return cls(
            call,
            board,
            opening,
            worker,
            binds_cycles=request.mode is Mode.RATIO,
            feedback_wanted=FeedbackWanted(
                feature_layers=worker.feature_layers(request.plan.sources)
            ),
            cost=cost,
        )

    @property
    def is_alive(self) -> bool:
        """False once the stream ended."""
        return not self.lost_reason

    @property
    def patience(self) -> Patience:
        """Whether it makes sense to wait for this drafter."""
        return self.worker.patience

    @property
    def is_trusted(self) -> bool:
        """False once the drafter failed again and again, here or for others."""
        return self.worker.breaker.allows(self.clock())

    def judge(self, failure: str | None) -> None:
        """Tell what came of a draft: nothing wrong, or what was."""
        if failure is None:
            self.worker.succeed()
        else:
            self.worker.fail(failure, self.clock())

    def teach(self, continuations: common_pb2.Continuations) -> None:
        """Hand on what the target said, with the next advance."""
        if self.feedback_wanted.num_continuations:
            self.taught = [*self.taught, continuations][-MAX_TAUGHT:]

    def teach_features(self, features: StepFeatures) -> None:
        """Hand on hidden states, before the next advance, if they are of the right layers."""
        if features.layers == self.feedback_wanted.feature_layers:
            for chunk in features.chunks:
                self.features.add(chunk)

    @property
    def num_heals(self) -> int:
        """Times that the drafter's KV was not what the ledger expected."""
        return self.ledger.num_heals

    def answers(self, sequence: Sequence) -> bool:
        """True while the awaited answer can fit the present sequence."""
        if self.asked is None or self.asked.for_cycle not in (None, sequence.cycle):
            return False
        return self.asked.can_become(tuple(sequence.token_ids[self.asked.base_length :]))

    async def advance(
        self,
        sequence: Sequence,
        pending: Draft | None,
        num_tokens: int,
        *,
        max_outcomes: int = 1,
    ) -> None:
        """Tell what is committed and what is being verified (None: nothing is)."""
        self._note_ahead()  # an answer that is not waited for has taken this long at least
        start = min(self.ledger.cache_length, len(sequence) - 1)
        self.ledger.expect(start)  # the drafter may truncate to it before it computes anything
        for_cycle = None
        if self.binds_cycles:
            for_cycle = sequence.cycle if pending is None else sequence.cycle + 1
        advance = drafter_pb2.Advance(
            cycle=self.num_advances,
            start=start,
            token_ids=sequence.token_ids[start:],
            pending=None if pending is None else common_pb2.Draft(token_ids=pending.token_ids),
            max_draft_tokens=num_tokens,
            max_outcomes=max_outcomes,
            for_cycle=for_cycle or 0,
            continuations=self.taught,
        )
        self.taught.clear()
        pending_ids = None if pending is None else pending.token_ids
        self.asked = Asked(
            self.num_advances,
            len(sequence),
            pending_ids,
            for_cycle,
            self.clock(),
            max_outcomes,
            will_tell=self.tells_outcomes and max_outcomes > 1,
            reads_prompt=self.num_advances == 0,
        )
        self.num_advances += 1
        try:
            with self.deadline.within(WRITE_TIMEOUT_S):
                if self.reader is None:
                    self.reader = asyncio.create_task(self._read())
                    await self.call.write(drafter_pb2.DraftRequest(open=self.opening))
                for chunk in self.features.take():
                    await self.call.write(drafter_pb2.DraftRequest(features=chunk))
                await self.call.write(drafter_pb2.DraftRequest(advance=advance))
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError, TimeoutError):
            self._lose("drafter_lost")

    def close(self) -> None:
        """End the stream; the drafter frees the KV."""
        self.call.cancel()
        self.deadline.close()
        if self.reader is not None:
            self.reader.cancel()

    async def _read(self) -> None:
        """Post blocks until the stream ends."""
        try:
            while (response := await self.call.read()) is not grpc.aio.EOF:
                if response is None:  # what grpc makes of bytes that are no message
                    self.call.cancel()
                    return self._lose("drafter_lost")
                kind = response.WhichOneof("kind")
                if kind == "opened" and not self._knows(response.opened.incarnation):
                    self.call.cancel()
                    return self._lose("drafter_restarted")
                if kind == "opened":
                    self._learn_wishes(response.opened)
                if kind == "block":
                    self._post(response.block)
                elif kind == "outcomes":
                    self._foresee(response.outcomes)
                elif kind == "context_needed":
                    self._answered(response.context_needed.cycle)
                    self.ledger.lower(response.context_needed.have_length)
                    self.board.wake()
            self._lose(await self._why())
        except grpc.aio.AioRpcError as error:
            self._lose(_reason(error.code()))

    def _learn_wishes(self, opened: drafter_pb2.DraftOpened) -> None:
        before = self.feedback_wanted.feature_layers
        num_continuations = min(opened.num_continuations, MAX_CONTINUATIONS)
        layers = tuple(opened.features.layers)
        self.feedback_wanted = FeedbackWanted(num_continuations, layers)
        if layers != before:  # what was kept is not what it can read
            self.features.take()

    def _knows(self, incarnation: str) -> bool:
        """True if this is the drafter whose identity was judged."""
        return self.worker.identity is not None and self.worker.identity.incarnation == incarnation

    def _foresee(self, outcomes: drafter_pb2.Outcomes) -> None:
        """Learn which outcomes blocks will come for; who waits for another one need not."""
        self.tells_outcomes = True
        if self.asked is not None and self.asked.cycle == outcomes.cycle:
            paths = frozenset(tuple(path.token_ids) for path in outcomes.paths)
            self.asked = replace(self.asked, outcomes=paths)
            self.board.wake()

    def _note_ahead(self) -> None:
        """Learn what drafts behind a pending one take from the asking on; prompts take longer."""
        asked = self.asked
        if asked is not None and asked.pending is not None and not asked.reads_prompt:
            elapsed_ms = (self.clock() - asked.asked_s) * 1e3
            self.cost.ahead.observe(asked.num_outcomes, elapsed_ms)

    def _post(self, block: drafter_pb2.DraftBlock) -> None:
        if block.last:
            self._answered(block.cycle)
        stated = min(block.cache_length, block.base_length)
        if stated < self.ledger.cache_length:
            self.ledger.observe(stated)
        else:
            self.ledger.expect(stated)
        path = tuple(block.path_token_ids)
        draft = Draft.from_proto(block.draft, compute_ms=block.compute_ms)
        if draft:
            self.cost.compute.observe(len(draft), block.compute_ms)
        for_cycle = block.for_cycle if self.binds_cycles else None
        self.board.post(DraftBlock(block.base_length, path, draft, for_cycle))

    def _answered(self, cycle: int) -> None:
        if self.asked is not None and self.asked.cycle == cycle:
            self._note_ahead()
            self.asked = None

    async def _why(self) -> str:
        return _reason(await self.call.code())

    def _lose(self, reason: str) -> None:
        if not self.lost_reason:
            self.lost_reason = reason
        self.asked = None
        self.board.wake()


def _reason(code: grpc.StatusCode) -> str:
    if code is grpc.StatusCode.RESOURCE_EXHAUSTED:
        return "drafter_full"
    if code in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.INVALID_ARGUMENT):
        return "drafter_refused"
    return "drafter_lost"
