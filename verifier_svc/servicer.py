"""The verifier's gRPC face: messages to leases and back, nothing else."""

from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import chain

import grpc

from outrider.constraint import Constraints
from outrider.continuations import MAX_CONTINUATIONS
from outrider.draft import Draft
from outrider.engine import CacheTooShort, Engine
from outrider.errors import InvalidField, ResourceExhausted
from outrider.features import objection_to_layers
from outrider.identity import IdentityDigests, ModelIdentity
from outrider.prefix import PrefixDigest
from outrider.proposed import Proposed
from outrider.sampling import MAX_TRACED_IDS, AcceptanceRule, Mode, proposal_key, read_law
from outrider.sampling_state import SequenceState
from outrider.serving.streams import first_message
from outrider.v1 import common_pb2, verifier_pb2, verifier_pb2_grpc
from outrider.wire import validate_draft
from outrider.worker import engine_load
from verifier_svc.lease import VerifierLease
from verifier_svc.verification import Asked, Law, Verification

RULES = {
    verifier_pb2.RATIO_RULE_UNSPECIFIED: AcceptanceRule.BLOCK,
    verifier_pb2.RATIO_RULE_REJECTION: AcceptanceRule.REJECTION,
    verifier_pb2.RATIO_RULE_BLOCK: AcceptanceRule.BLOCK,
}


@dataclass(slots=True)
class VerifierServicer(verifier_pb2_grpc.VerifierServiceServicer):
    """Serves ``Verify``: one lease a stream, steps one after the other."""

    engine: Engine
    identity: ModelIdentity
    constraints: Constraints
    max_draft_tokens: int
    max_sequences: int
    max_feature_layer: int | None = None
    """Decoder layers of the model; None: it gives no hidden states."""
    num_leases: int = field(default=0)

    def load(self) -> common_pb2.Load:
        """Return the present load."""
        return engine_load(self.engine, self.num_leases)

    async def Verify(
        self,
        request_iterator: AsyncIterator[verifier_pb2.VerifyRequest],
        context: grpc.aio.ServicerContext,
    ) -> AsyncIterator[verifier_pb2.VerifyResponse]:
        """Open a lease with the first message, answer every step, free the KV when the stream
        ends."""
        lease = await self._open(await first_message(request_iterator))
        try:
            incarnation = self.identity.incarnation
            opened = verifier_pb2.VerifyOpened(incarnation=incarnation)
            yield verifier_pb2.VerifyResponse(opened=opened)
            async for request in request_iterator:
                for response in await self._step(lease, request):
                    yield response
        finally:
            self.num_leases -= 1
            lease.close()

    async def _open(self, request: verifier_pb2.VerifyRequest) -> VerifierLease:
        if request.WhichOneof("kind") != "open":
            raise InvalidField("kind", "the first message of a stream must be open")
        opening = request.open
        self.identity.require(IdentityDigests.from_proto(opening.expected))
        mode, sampling = read_law(opening.mode, opening.sampling)
        rule = RULES.get(opening.ratio_rule)
        if rule is None:
            raise InvalidField("open.ratio_rule", f"{opening.ratio_rule} is not a rule")
        constrained = await self.constraints.opened(sampling)
        if self.num_leases >= self.max_sequences:
            raise ResourceExhausted(f"all {self.max_sequences} leases of this verifier are open")
        self.num_leases += 1
        return VerifierLease(
            engine=self.engine,
            cache=self.engine.open(salt=opening.cache_salt),
            law=Law(mode, sampling, opening.seed, opening.num_prompt_tokens, rule),
            priority=-opening.priority,  # the engine runs lower ones first
            max_context_length=self.identity.max_context_length,
            digest=PrefixDigest(),
            states=SequenceState(
                sampling, opening.num_prompt_tokens, self.identity.vocab_size, constrained
            ),
        )

    async def _step(
        self, lease: VerifierLease, request: verifier_pb2.VerifyRequest
    ) -> Iterable[verifier_pb2.VerifyResponse]:
        if request.WhichOneof("kind") != "step":
            raise InvalidField("kind", "every message after the first must be a step")
        step = request.step
        self._check_step(step)
        have = lease.holds(step.start, step.prefix_digest)
        if have is not None:
            return (_context_needed(step.cycle, have),)
        proposed, invalid = self._usable_draft(lease.law, step)
        try:
            job = await lease.verify(
                step.start,
                list(step.token_ids),
                proposed,
                cycle=step.cycle,
                asked=Asked(
                    num_traced_ids=step.top_ids,
                    num_continuations=min(step.num_continuations, self.identity.vocab_size),
                    feature_layers=tuple(step.features.layers),
                    score_only=step.score_only,
                    rank_uniforms=step.rank_uniforms,
                ),
            )
        except CacheTooShort as error:
            return (_context_needed(step.cycle, error.length),)
        verdict = self._verdict(step.cycle, job, invalid or job.dropped)
        return chain(_chunks(job), [verifier_pb2.VerifyResponse(verdict=verdict)])

    def _check_step(self, step: verifier_pb2.Step) -> None:
        if not step.token_ids:
            raise InvalidField("step.token_ids", "at least one committed id must follow start")
        vocab_size = self.identity.vocab_size
        worst = max(step.token_ids)
        if worst >= vocab_size:
            raise InvalidField("step.token_ids", f"id {worst} is not below {vocab_size}")
        if step.top_ids > MAX_TRACED_IDS:
            raise InvalidField("step.top_ids", f"{step.top_ids} is above {MAX_TRACED_IDS}")
        if step.num_continuations > MAX_CONTINUATIONS:
            raise InvalidField(
                "step.num_continuations", f"{step.num_continuations} is above {MAX_CONTINUATIONS}"
            )
        if step.HasField("features") and (
            objection := objection_to_layers(step.features.layers, self.max_feature_layer)
        ):
            raise InvalidField("step.features.layers", objection)

    def _usable_draft(self, law: Law, step: verifier_pb2.Step) -> tuple[Proposed, str]:
        if not step.draft.token_ids:
            return Proposed(), ""
        invalid = validate_draft(
            step.draft,
            vocab_size=self.identity.vocab_size,
            max_draft_tokens=self.max_draft_tokens,
            max_depth=self.identity.max_context_length - step.start - len(step.token_ids),
        )
        if invalid:
            return Proposed(), invalid
        draft = Draft.from_proto(step.draft).simplest()
        if draft.parents and (reason := self._obstacle_to_tree(law, draft, step)):
            return Proposed(), reason
        if law.mode is not Mode.RATIO:
            return Proposed(draft.token_ids, parents=draft.parents, probes=draft.probes), ""
        return Proposed.of(draft).redrawn(
            proposal_key=proposal_key(law.key),
            base_position=step.start + len(step.token_ids),
            cycle=step.cycle,
        )

    def _obstacle_to_tree(self, law: Law, draft: Draft, step: verifier_pb2.Step) -> str:
        most = self.engine.settings.max_tokens_per_pass // 2  # a tree goes into one pass
        if len(draft) > most:
            return f"parents: a tree of {len(draft)} nodes, at most {most}"
        if law.mode is Mode.RATIO and draft.distributions:
            return "parents: in RATIO no tree of sampled nodes is verified"
        return "parents: only chains are traced" if step.top_ids else ""

    def _verdict(self, cycle: int, job: Verification, invalid: str) -> verifier_pb2.Verdict:
        assert job.decision is not None
        assert job.finished is not None
        decision, finished, score = job.decision, job.finished, job.prompt_score
        if not job.proposes:
            kind = verifier_pb2.NEXT_TOKEN_KIND_ONLY
        elif job.is_accepted_whole:
            kind = verifier_pb2.NEXT_TOKEN_KIND_BONUS
        else:
            kind = verifier_pb2.NEXT_TOKEN_KIND_RECOVERED
        return verifier_pb2.Verdict(
            cycle=cycle,
            accepted_nodes=decision.accepted_nodes,
            next_token_id=decision.next_token_id,
            next_token_kind=kind,
            cache_length=job.base + decision.num_accepted,
            invalid_draft=invalid,
            no_room_for_draft=bool(job.dropped),
            cached_tokens=max(finished.cached_tokens - job.begin, 0),
            queue_ms=finished.queue_ms,
            compute_ms=finished.compute_ms + (score.compute_ms if score else 0),
            rows_in_pass=finished.rows_in_pass,
            num_passes=finished.passes + (score.num_passes if score else 0),
            min_decision_margin=decision.min_margin,
            load=self.load(),
            rank_uniforms=job.rank_uniforms,
            trace=None if job.trace is None else job.trace.to_proto(),
            continuations=None if job.continuations is None else job.continuations.to_proto(),
            logprobs=[each.to_proto() for each in job.logprobs],
            prompt_logprobs=[each.to_proto() for each in score.logprobs] if score else (),
            scored_nodes=job.scored_nodes,
        )


def _chunks(job: Verification) -> Iterator[verifier_pb2.VerifyResponse]:
    for chunk in () if job.features is None else job.features.chunks():
        yield verifier_pb2.VerifyResponse(features=chunk.to_proto())


def _context_needed(cycle: int, have_length: int) -> verifier_pb2.VerifyResponse:
    needed = common_pb2.ContextNeeded(cycle=cycle, have_length=have_length)
    return verifier_pb2.VerifyResponse(context_needed=needed)
