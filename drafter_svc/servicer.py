"""The drafter's gRPC face: messages to leases and back, nothing else."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from functools import partial

import grpc

from drafter_svc.legality import legal_block
from drafter_svc.source import (
    Block,
    FeatureLease,
    Foreseen,
    Opening,
    OutcomeLease,
    Source,
    SourceLease,
    Wanted,
)
from outrider.constraint import Constraints
from outrider.continuations import Continuations
from outrider.draft import MAX_OUTCOMES, NO_DRAFT
from outrider.engine import CacheTooShort
from outrider.errors import IdentityMismatch, InvalidField, ResourceExhausted
from outrider.features import Features
from outrider.identity import ModelIdentity
from outrider.sampling import Mode, read_law
from outrider.sampling_state import SamplingState, SequenceState
from outrider.serving.streams import first_message
from outrider.v1 import common_pb2, drafter_pb2, drafter_pb2_grpc

NO_BLOCK = Block(path=(), draft=NO_DRAFT)
Ready = asyncio.Queue[drafter_pb2.DraftResponse | None]
"""What can be written of an answer that is still being made; None: its last message is made."""


@dataclass(slots=True)
class Drafted:
    """A sequence that is drafted for: its law, the source's lease, and what was told of it."""

    mode: Mode
    lease: SourceLease
    states: SequenceState

    async def told(self, start: int, token_ids: Sequence[int]) -> SamplingState | None:
        """Take ids in and return the state behind them, None where a constraint cannot tell.

        Raises: ValueError as ``SequenceState.tell`` does.
        """
        self.states.tell(start, token_ids)
        if self.states.constrained is None:
            return self.states.state()
        try:
            # The thread may outlive an advance that a newer one replaced: it works on copies alone.
            behind, output_ids = self.states.constrained.behind, self.states.output_ids
            return self.states.state(await asyncio.to_thread(behind, output_ids))
        except InvalidField:  # the verifier will say so to whom it concerns
            return None


@dataclass(slots=True)
class DrafterServicer(drafter_pb2_grpc.DrafterServiceServicer):
    """Serves ``Draft``: one lease a stream; a new advance replaces the one that is being answered.

    ``sources`` by name, the default first.
    """

    sources: Mapping[str, Source]
    identity: ModelIdentity
    max_draft_tokens: int
    max_sequences: int
    constraints: Constraints | None = None
    """Of the tokenizer that the drafter loaded, if any; for targets that have the same one."""
    num_leases: int = field(default=0)

    async def Draft(
        self,
        request_iterator: AsyncIterator[drafter_pb2.DraftRequest],
        context: grpc.aio.ServicerContext,
    ) -> None:
        """Open a lease with the first message, answer every advance, free all when the stream
        ends."""
        source, sequence = await self._open(await first_message(request_iterator))
        lease = sequence.lease
        try:
            opened = drafter_pb2.DraftOpened(
                source=source.name,
                incarnation=self.identity.incarnation,
                num_continuations=source.num_continuations,
                features=_spec(source.feature_layers),
            )
            await context.write(drafter_pb2.DraftResponse(opened=opened))
            async with asyncio.TaskGroup() as group:
                drafting: asyncio.Task[drafter_pb2.DraftResponse] | None = None
                answer: asyncio.Task[None] | None = None
                features_end = 0
                async for request in request_iterator:
                    if request.WhichOneof("kind") == "features":
                        features = _checked_features(source, request.features)
                        features_end = max(features_end, features.end)
                        assert isinstance(lease, FeatureLease)
                        lease.take_features(features)
                        continue
                    advance = self._checked_advance(source, request, features_end)
                    if drafting is not None and answer is not None:
                        # Nobody waits for that draft any more. Only the drafting is cancelled: a
                        # write must end before the next one begins.
                        drafting.cancel()
                        await asyncio.wait([answer])
                    ready = Ready()
                    drafting = group.create_task(self._draft(sequence, advance, ready))
                    drafting.add_done_callback(partial(_end, ready))
                    answer = group.create_task(
                        self._answer(drafting, ready, lease, advance, context)
                    )
        finally:
            self.num_leases -= 1
            lease.close()

    async def _draft(
        self, sequence: Drafted, advance: drafter_pb2.Advance, ready: Ready
    ) -> drafter_pb2.DraftResponse:
        """Return the last message of an answer; those before it become ready meanwhile."""
        lease = sequence.lease
        try:
            have = min(lease.cache_length, len(sequence.states))
            if advance.start > have:
                raise CacheTooShort(have)
            state = await sequence.told(advance.start, advance.token_ids)
            if state is None:
                return _response(advance, NO_BLOCK, lease)
            wanted = _wanted(advance, state)
            several = wanted.pending is not None and wanted.num_draft_tokens > 0
            if several and wanted.max_outcomes > 1 and isinstance(lease, OutcomeLease):
                return await self._draft_each(sequence.mode, lease, advance, wanted, ready)
            block = legal_block(await lease.draft(wanted), wanted, sequence.mode)
            return _response(advance, block, lease)
        except CacheTooShort as error:
            needed = common_pb2.ContextNeeded(cycle=advance.cycle, have_length=error.length)
            return drafter_pb2.DraftResponse(context_needed=needed)

    async def _draft_each(
        self,
        mode: Mode,
        lease: OutcomeLease,
        advance: drafter_pb2.Advance,
        wanted: Wanted,
        ready: Ready,
    ) -> drafter_pb2.DraftResponse:
        """Tell the outcomes, then every block as soon as it is there; return the last one.

        That is an empty one where a block is missing.
        """
        foreseen = await lease.foresee(wanted)
        ready.put_nowait(_outcomes(advance, foreseen))
        num_left = len(foreseen.paths)
        async with aclosing(lease.draft_each(wanted, foreseen)) as blocks:
            async for drawn in blocks:
                block = legal_block(drawn, wanted, mode)
                num_left -= 1
                if not num_left:
                    return _response(advance, block, lease)
                ready.put_nowait(_response(advance, block, lease, last=False))
        return _response(advance, NO_BLOCK, lease)

    async def _answer(
        self,
        drafting: "asyncio.Task[drafter_pb2.DraftResponse]",
        ready: Ready,
        lease: SourceLease,
        advance: drafter_pb2.Advance,
        context: grpc.aio.ServicerContext,
    ) -> None:
        """Write what the drafting comes to, an empty last block if it was cancelled."""
        while (response := await ready.get()) is not None:
            if not drafting.cancelled():
                await _write(context, response)
        last = _response(advance, NO_BLOCK, lease) if drafting.cancelled() else drafting.result()
        await _write(context, last)

    async def _open(self, request: drafter_pb2.DraftRequest) -> tuple[Source, Drafted]:
        if request.WhichOneof("kind") != "open":
            raise InvalidField("kind", "the first message of a stream must be open")
        opening = request.open
        mode, sampling = read_law(opening.mode, opening.sampling)
        if opening.vocab_size == 0:
            raise InvalidField("open.vocab_size", "must be the size of the target's vocabulary")
        source = self._choose(tuple(opening.sources))
        if source.needs_tokenizer:
            self._check_target(opening.target)
        constrained = None
        if self.constraints is not None and self._has_tokenizer_of(opening.target):
            constrained = await self.constraints.opened(sampling)
        if self.num_leases >= self.max_sequences:
            raise ResourceExhausted(f"all {self.max_sequences} leases of this drafter are open")
        self.num_leases += 1
        states = SequenceState(sampling, opening.num_prompt_tokens, opening.vocab_size, constrained)
        lease = source.open(
            Opening(
                mode=mode,
                sampling=sampling,
                noise_key=opening.noise_key,
                num_prompt_tokens=opening.num_prompt_tokens,
                vocab_size=opening.vocab_size,
                cache_salt=opening.cache_salt,
                tokenizer_digest=opening.target.tokenizer_digest,
            )
        )
        return source, Drafted(mode, lease, states)

    def _choose(self, wanted: tuple[str, ...]) -> Source:
        if not wanted:
            return next(iter(self.sources.values()))
        for name in wanted:
            if name in self.sources:
                return self.sources[name]
        offered = ", ".join(self.sources)
        raise InvalidField("open.sources", f"none of {', '.join(wanted)} is offered ({offered})")

    def _has_tokenizer_of(self, target: common_pb2.IdentityDigests) -> bool:
        own = self.identity.to_proto().digests.tokenizer_digest
        return bool(own) and target.tokenizer_digest == own

    def _check_target(self, target: common_pb2.IdentityDigests) -> None:
        own = self.identity.to_proto().digests.tokenizer_digest
        if target.tokenizer_digest and target.tokenizer_digest != own:
            raise IdentityMismatch(
                "target.tokenizer_digest: "
                f"drafts need {own}, the target has {target.tokenizer_digest}"
            )

    def _checked_advance(
        self, source: Source, request: drafter_pb2.DraftRequest, features_end: int
    ) -> drafter_pb2.Advance:
        if request.WhichOneof("kind") != "advance":
            raise InvalidField("kind", "after the first come advances and features only")
        advance = request.advance
        if advance.max_draft_tokens > self.max_draft_tokens:
            limit = f"{advance.max_draft_tokens} is above {self.max_draft_tokens}"
            raise InvalidField("advance.max_draft_tokens", limit)
        if advance.max_outcomes > MAX_OUTCOMES:
            limit = f"{advance.max_outcomes} is above {MAX_OUTCOMES}"
            raise InvalidField("advance.max_outcomes", limit)
        if not advance.token_ids:
            raise InvalidField("advance.token_ids", "at least one committed id must follow start")
        base = advance.start + len(advance.token_ids)
        if features_end > base:
            limit = f"features of position {features_end - 1} before its id; there are {base}"
            raise InvalidField("features.start", limit)
        pending = advance.pending.token_ids
        if source.needs_tokenizer:
            worst = max((*advance.token_ids, *pending), default=0)
            if worst >= self.identity.vocab_size:
                limit = f"id {worst} is not below {self.identity.vocab_size}"
                raise InvalidField("advance.token_ids", limit)
        return advance


async def _write(context: grpc.aio.ServicerContext, response: drafter_pb2.DraftResponse) -> None:
    """Write unless the call is over, which the loop over its requests learns by itself."""
    with suppress(grpc.aio.BaseError):
        await context.write(response)


def _end(ready: Ready, _: "asyncio.Task[drafter_pb2.DraftResponse]") -> None:
    ready.put_nowait(None)


def _spec(layers: tuple[int, ...]) -> common_pb2.FeatureSpec | None:
    return common_pb2.FeatureSpec(layers=layers) if layers else None


def _checked_features(source: Source, chunk: common_pb2.FeatureChunk) -> Features:
    """Read a chunk.

    A wrong one is the peer's mistake, such as a drafter paired with another target; to pass over
    it would leave drafts bad without a word.
    """
    if not source.feature_layers:
        raise InvalidField("features", f"source {source.name} asks for none")
    features = Features.from_proto(chunk, source.feature_width)
    if features is None:
        limit = f"{len(chunk.values)} bytes are no positions of {source.feature_width} numbers"
        raise InvalidField("features.values", limit)
    return features


def _wanted(advance: drafter_pb2.Advance, state: SamplingState) -> Wanted:
    pending = tuple(advance.pending.token_ids) if advance.HasField("pending") else None
    return Wanted(
        start=advance.start,
        token_ids=tuple(advance.token_ids),
        pending=pending,
        num_draft_tokens=advance.max_draft_tokens,
        state=state,
        for_cycle=advance.for_cycle,
        continuations=tuple(
            read
            for each in advance.continuations
            if (read := Continuations.from_proto(each)) is not None
        ),
        max_outcomes=max(advance.max_outcomes, 1),
    )


def _outcomes(advance: drafter_pb2.Advance, foreseen: Foreseen) -> drafter_pb2.DraftResponse:
    paths = [drafter_pb2.OutcomePath(token_ids=path) for path in foreseen.paths]
    return drafter_pb2.DraftResponse(
        outcomes=drafter_pb2.Outcomes(cycle=advance.cycle, paths=paths)
    )


def _response(
    advance: drafter_pb2.Advance, block: Block, lease: SourceLease, *, last: bool = True
) -> drafter_pb2.DraftResponse:
    message = drafter_pb2.DraftBlock(
        base_length=advance.start + len(advance.token_ids),
        path_token_ids=block.path,
        for_cycle=advance.for_cycle,
        draft=block.draft.to_proto(),
        cache_length=lease.cache_length,
        compute_ms=block.compute_ms,
        last=last,
        cycle=advance.cycle,
    )
    return drafter_pb2.DraftResponse(block=message)
