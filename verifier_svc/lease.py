"""A lease: what the verifier keeps of one sequence while its stream is open."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from outrider.engine import Engine, NoRoomForTree, SequenceCache
from outrider.errors import InvalidField
from outrider.prefix import PrefixDigest
from outrider.proposed import Proposed
from outrider.sampling_state import SequenceState
from verifier_svc.scoring import PromptScore
from verifier_svc.verification import Asked, Law, Verification


@dataclass(slots=True)
class VerifierLease:
    """One sequence's KV and law; knows which ids it was told.

    ``digest`` follows the committed ids that the orchestrator stated, ``cache`` the KV rows that
    exist; the cache may be shorter at any time, since an idle lease can lose its blocks to others.
    """

    engine: Engine
    cache: SequenceCache
    law: Law
    priority: int
    max_context_length: int
    digest: PrefixDigest
    states: SequenceState

    def holds(self, start: int, prefix_digest: bytes) -> int | None:
        """Return how many positions the lease can build on if [0, start) is not what it holds,
        else None."""
        have = min(len(self.digest), self.cache.committed_length)
        if start > have:
            return have
        return None if self.digest.digest(start) == prefix_digest else 0

    async def verify(
        self,
        start: int,
        token_ids: Sequence[int],
        proposed: Proposed,
        *,
        cycle: int,
        asked: Asked,
    ) -> Verification:
        """Run one step: truncate to ``start``, extend by ``token_ids``, check the draft.

        A tree for which there is no room is treated as no draft; the job says so.

        Raises: InvalidField if the ids do not fit the context, or a constraint leaves no token;
            CacheTooShort if KV got lost meanwhile.
        """
        base = start + len(token_ids)
        if base > self.max_context_length:
            limit = f"exceeds the context of {self.max_context_length} tokens"
            raise InvalidField("step.token_ids", f"a sequence of {base} tokens {limit}")
        self.digest.truncate(start)
        self.digest.extend(token_ids)
        self.states.tell(start, token_ids)
        score = await self._score_prompt(start, token_ids)
        if score is not None:
            start, token_ids = score.end, token_ids[score.end :]
        job = await self._judged(
            lambda: Verification(
                cache=self.cache,
                law=self.law,
                begin=start,
                token_ids=token_ids,
                proposed=proposed,
                state=self.states.state(),
                cycle=cycle,
                asked=asked,
                priority=self.priority,
                prompt_score=score,
            )
        )
        try:
            await self.engine.run(job)
        except NoRoomForTree as error:  # the head has not seen the job
            job = replace(job, proposed=Proposed(), dropped=str(error))
            await self.engine.run(job)
        assert job.decision is not None
        self._require_way_on(job, job.decision.accepted_nodes)
        accepted = [job.draft_token_ids[node] for node in job.decision.accepted_nodes]
        self.digest.extend(accepted)
        self.states.tell(base, accepted)
        return job

    async def _judged(self, make: Callable[[], Verification]) -> Verification:
        """Make a job, which tells how each of its rows is processed.

        A constraint has much to tell, of some grammars for long: not on the event loop.
        """
        if self.law.sampling.constraint is None:
            return make()
        job = await asyncio.to_thread(make)
        self._require_way_on(job, ())
        return job

    def _require_way_on(self, job: Verification, accepted_nodes: Sequence[int]) -> None:
        """Raise InvalidField if the row behind the accepted nodes had no id to choose.

        What it chose is never told: an answer is what it was asked to be, or an error.
        """
        if job.rows[accepted_nodes[-1] + 1 if accepted_nodes else 0].is_dead_end:
            assert self.law.sampling.constraint is not None
            length = job.base + len(accepted_nodes) - self.law.num_prompt_tokens
            raise InvalidField(
                f"sampling_params.{self.law.sampling.constraint.kind.value}",
                f"no token can follow the first {length} of this output: the vocabulary cannot "
                "write what would, or too much could",
            )

    async def _score_prompt(self, start: int, token_ids: Sequence[int]) -> PromptScore | None:
        """Work out the log probabilities of the prompt, where a step that holds it is asked to."""
        num_top, num_prompt_tokens = self.law.sampling.prompt_logprobs, self.law.num_prompt_tokens
        if num_top is None or start > 0 or not 2 <= num_prompt_tokens <= len(token_ids):
            return None
        score = PromptScore(self.cache, token_ids[:num_prompt_tokens], num_top, self.priority)
        await self.engine.run(score)
        return score

    def close(self) -> None:
        """Give the KV back."""
        self.engine.release(self.cache)
