"""One verification: a job of the engine, and the head that decides all jobs of a pass at once."""

from collections.abc import Sequence
from dataclasses import dataclass

from outrider.acceptance import ChainRequest, Decision, verify_batch
from outrider.distribution import RowSampling
from outrider.engine import Finished, JobInput, SequenceCache, stacked_logits
from outrider.explanation import StepTrace, explain
from outrider.proposed import Proposed
from outrider.sampling import AcceptanceRule, Mode, SamplingParams


@dataclass(frozen=True, slots=True)
class Law:
    """What turns a sequence's logits into tokens; fixed while its lease is open."""

    mode: Mode
    sampling: SamplingParams
    key: int
    num_prompt_tokens: int
    rule: AcceptanceRule = AcceptanceRule.BLOCK
    """Decides in RATIO."""

    def rows(self, base: int, num_rows: int) -> tuple[RowSampling, ...]:
        """Return the row parameters of the tokens at positions [base, base + num_rows)."""
        num_masked = self.num_prompt_tokens + self.sampling.min_tokens - base
        free = self._row(())
        if num_masked <= 0:
            return (free,) * num_rows
        masked = self._row(self.sampling.stop_token_ids)
        return tuple(masked if row < num_masked else free for row in range(num_rows))

    def _row(self, banned_ids: tuple[int, ...]) -> RowSampling:
        params = self.sampling
        return RowSampling(
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            min_p=params.min_p,
            banned_ids=banned_ids,
        )


@dataclass(slots=True)
class Verification:
    """The job of one step: feed ids and draft, decide from the last ``len(draft) + 1`` rows."""

    cache: SequenceCache
    law: Law
    begin: int
    token_ids: Sequence[int]
    proposed: Proposed
    cycle: int = 0
    num_traced_ids: int = 0
    priority: int = 0
    done: bool = False
    next: JobInput | None = None
    decision: Decision | None = None
    trace: StepTrace | None = None
    finished: Finished | None = None

    @property
    def draft_token_ids(self) -> tuple[int, ...]:
        """The ids to check."""
        return self.proposed.token_ids

    @property
    def base(self) -> int:
        """Committed length: the position of the first draft token."""
        return self.begin + len(self.token_ids)

    def start(self) -> JobInput:
        """Return what the engine feeds."""
        return JobInput(
            start=self.begin,
            token_ids=[*self.token_ids, *self.draft_token_ids],
            num_logit_rows=len(self.draft_token_ids) + 1,
            committed=self.base,
        )


@dataclass(slots=True)
class VerificationHead:
    """Decides every verification that a pass finished, and cuts the caches to what was
    committed."""

    vocab_size: int
    head_size: int

    def __call__(self, finished: list[Finished]) -> None:
        """Decide; runs on the engine's thread."""
        jobs: list[Verification] = [entry.job for entry in finished]  # type: ignore[misc]
        requests = [
            ChainRequest(
                proposed=job.proposed,
                rows=job.law.rows(job.base, len(job.draft_token_ids) + 1),
                mode=job.law.mode,
                key=job.law.key,
                base_position=job.base,
                cycle=job.cycle,
                rule=job.law.rule,
            )
            for job in jobs
        ]
        logits = stacked_logits(finished)  # [sum of K + 1, V]
        decisions = verify_batch(
            requests, logits, vocab_size=self.vocab_size, head_size=self.head_size
        )
        for job, entry, request, decision in zip(jobs, finished, requests, decisions, strict=True):
            if job.num_traced_ids:
                job.trace = explain(
                    entry.logits,
                    request,
                    decision,
                    num_ids=job.num_traced_ids,
                    vocab_size=self.vocab_size,
                    head_size=self.head_size,
                )
            length = job.base + decision.num_accepted
            job.cache.truncate(length)
            job.cache.commit(length)
            job.decision, job.finished, job.done = decision, entry, True
