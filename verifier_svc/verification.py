"""One verification: a job of the engine, and the head that decides all jobs of a pass at once."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from outrider import distribution, noise, ranking, wire
from outrider.acceptance import ChainRequest, Decision, verify_batch
from outrider.continuations import Continuations
from outrider.distribution import RowSampling
from outrider.engine import Finished, JobInput, SequenceCache, stacked_logits
from outrider.explanation import StepTrace, explain
from outrider.features import Features
from outrider.logprobs import TokenLogprobs, token_logprobs
from outrider.proposed import Proposed
from outrider.rules import Floats
from outrider.sampling import AcceptanceRule, Mode, SamplingParams
from outrider.sampling_state import SamplingState
from outrider.tree import TreeLayout
from outrider.uniformity import rank_uniforms
from verifier_svc.scoring import PromptScore


@dataclass(frozen=True, slots=True)
class Law:
    """What turns a sequence's logits into tokens; fixed while its lease is open."""

    mode: Mode
    sampling: SamplingParams
    key: int
    num_prompt_tokens: int
    rule: AcceptanceRule = AcceptanceRule.BLOCK
    """Decides in RATIO."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a step asks for beside the target's tokens.

    ``num_traced_ids``: most likely ids of every row in a trace, 0 for no trace;
    ``num_continuations``: of every verified row, for drafters; ``feature_layers``: whose hidden
    states; ``rank_uniforms``: how the tokens lie in their distributions. With ``score_only`` the
    draft is judged, and what is committed is what the step gives without it.
    """

    num_traced_ids: int = 0
    num_continuations: int = 0
    feature_layers: tuple[int, ...] = ()
    score_only: bool = False
    rank_uniforms: bool = False


@dataclass(slots=True)
class Verification:
    """The job of one step: feed ids and draft, decide from the last ``len(draft) + 1`` rows."""

    cache: SequenceCache
    law: Law
    begin: int
    token_ids: Sequence[int]
    proposed: Proposed
    state: SamplingState
    """Behind the committed ids."""
    cycle: int = 0
    asked: Asked = Asked()
    priority: int = 0
    prompt_score: PromptScore | None = None
    """What was worked out of the prompt before, in the same step."""
    done: bool = False
    next: JobInput | None = None
    decision: Decision | None = None
    """On what is committed."""
    scored_nodes: tuple[int, ...] = ()
    """With ``score_only``: what would have been accepted."""
    trace: StepTrace | None = None
    continuations: Continuations | None = None
    features: Features | None = None
    """Of the positions that were computed and committed."""
    logprobs: list[TokenLogprobs] = field(default_factory=list)
    """Of what is committed, where the sequence asks for them."""
    rank_uniforms: tuple[float, ...] = ()
    """Of what is committed, where they are wanted."""
    finished: Finished | None = None
    dropped: str = ""
    """Why the step's draft was left out."""
    layout: TreeLayout | None = field(init=False)
    rows: tuple[RowSampling, ...] = field(init=False)
    """How each of the rows that decide is processed."""

    def __post_init__(self) -> None:
        self.rows = self.state.rows(self.proposed.token_ids, self.proposed.parents)
        parents = self.proposed.parents
        self.layout = TreeLayout.of(parents) if parents else None

    @property
    def draft_token_ids(self) -> tuple[int, ...]:
        """The ids to check."""
        return self.proposed.token_ids

    @property
    def base(self) -> int:
        """Committed length: the position of the first draft token."""
        return self.begin + len(self.token_ids)

    @property
    def proposes(self) -> bool:
        """False without a draft that may be accepted, or with one of probes alone."""
        return not self.asked.score_only and any(
            map(self.proposed.may_accept, range(len(self.draft_token_ids)))
        )

    @property
    def is_accepted_whole(self) -> bool:
        """True where nothing of the draft was left to judge behind what was accepted."""
        assert self.decision is not None
        if self.layout is None:
            return self.decision.num_accepted == len(self.draft_token_ids)
        last = self.decision.accepted_nodes[-1:] or (-1,)
        below = (node for node, parent in enumerate(self.layout.parents) if parent == last[0])
        return not any(map(self.proposed.may_accept, below))

    def start(self) -> JobInput:
        """Return what the engine feeds."""
        return JobInput(
            start=self.begin,
            token_ids=[*self.token_ids, *self.draft_token_ids],
            num_logit_rows=len(self.draft_token_ids) + 1,
            committed=self.base,
            tree=self.layout,
            taps=self.asked.feature_layers,
        )

    def settle(self, decision: Decision) -> None:
        """Cut the cache to what is committed, on the path that was accepted."""
        nodes = decision.accepted_nodes
        if self.layout is not None and nodes:
            index = self.layout.path_through(nodes)
            if index:
                path = self.layout.paths[index].nodes
                ids = [self.draft_token_ids[node] for node in path]
                self.cache.take_branch(index - 1, self.base, ids)
        length = self.base + len(nodes)
        self.cache.truncate(length)
        self.cache.commit(length)


def committed_features(entry: Finished, base: int, accepted_nodes: Sequence[int]) -> Features:
    """Return the hidden states of [first computed, base + accepted) along the accepted path."""
    assert entry.features is not None
    num_plain = base - entry.first_position
    if tuple(accepted_nodes) == tuple(range(len(accepted_nodes))):  # as in every chain
        rows = entry.features[: num_plain + len(accepted_nodes)]
    else:
        rows = entry.features[[*range(num_plain), *(num_plain + node for node in accepted_nodes)]]
    bits = rows.flatten(1).cpu().view(torch.int16).numpy()  # [positions, layers * hidden]
    return Features(entry.first_position, bits.view(np.uint16))


@dataclass(slots=True)
class VerificationHead:
    """Decides every verification that a pass finished, and cuts the caches to what was
    committed."""

    vocab_size: int
    head_size: int

    def __call__(self, finished: list[Finished]) -> None:
        """Decide; runs on the engine's thread."""
        decisive = []
        for entry in finished:
            if isinstance(entry.job, PromptScore):
                entry.job.take(entry, self.vocab_size)
            else:
                decisive.append(entry)
        if decisive:
            self._decide(decisive)

    def _decide(self, finished: list[Finished]) -> None:
        jobs: list[Verification] = [entry.job for entry in finished]  # type: ignore[misc]
        requests = [
            ChainRequest(
                proposed=job.proposed,
                rows=job.rows,
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
        self._take_scores(jobs, finished, requests, decisions)
        for job, entry, request, decision in zip(jobs, finished, requests, decisions, strict=True):
            if job.asked.num_traced_ids:
                job.trace = explain(
                    entry.logits[: len(request.rows)],
                    request,
                    decision,
                    num_ids=job.asked.num_traced_ids,
                    vocab_size=self.vocab_size,
                    head_size=self.head_size,
                )
            if job.asked.num_continuations:
                _, top = ranking.top(
                    entry.logits[:, : self.vocab_size], job.asked.num_continuations
                )
                rows = (job.token_ids[-1], *job.draft_token_ids)
                job.continuations = Continuations(rows, top.cpu().numpy())
            if job.asked.feature_layers:
                job.features = committed_features(entry, job.base, decision.accepted_nodes)
            job.logprobs = self._logprobs(job, entry.logits, decision)
            if job.asked.rank_uniforms and job.law.mode is not Mode.GREEDY:
                job.rank_uniforms = self._rank_uniforms(job, entry.logits, decision)
            job.settle(decision)
            job.decision, job.finished, job.done = decision, entry, True

    def _take_scores(
        self,
        jobs: Sequence[Verification],
        finished: Sequence[Finished],
        requests: list[ChainRequest],
        decisions: list[Decision],
    ) -> None:
        """Note what was decided on drafts that are only judged, and put in its place what the same
        steps without a draft come to: the first of their rows has the same logits, and with the
        same cycle the same noise.
        """
        scored = [index for index, job in enumerate(jobs) if job.asked.score_only]
        if not scored:
            return
        for index in scored:
            jobs[index].scored_nodes = decisions[index].accepted_nodes
            requests[index] = replace(
                requests[index], proposed=Proposed(), rows=requests[index].rows[:1]
            )
        plain = verify_batch(
            [requests[index] for index in scored],
            torch.cat([finished[index].logits[:1] for index in scored]),
            vocab_size=self.vocab_size,
            head_size=self.head_size,
        )
        for index, decision in zip(scored, plain, strict=True):
            decisions[index] = decision

    def _logprobs(
        self, job: Verification, logits: torch.Tensor, decision: Decision
    ) -> list[TokenLogprobs]:
        """Return those of the accepted tokens and of the one that follows; none if not wanted."""
        num_top = job.law.sampling.logprobs
        if num_top is None:
            return []
        nodes = decision.accepted_nodes
        ids = [*(job.draft_token_ids[node] for node in nodes), decision.next_token_id]
        rows = logits[[0, *(node + 1 for node in nodes)]]
        return token_logprobs(rows, ids, num_top=num_top, vocab_size=self.vocab_size)

    def _rank_uniforms(
        self, job: Verification, logits: torch.Tensor, decision: Decision
    ) -> tuple[float, ...]:
        """Return those of the accepted tokens and of the one that follows.

        The distributions are worked out anew from the logits: whatever made the decision may be
        what is wrong.
        """
        nodes = decision.accepted_nodes
        at = [0, *(node + 1 for node in nodes)]
        ids = [*(job.draft_token_ids[node] for node in nodes), decision.next_token_id]
        log_probs = distribution.log_probs(
            logits[at], [job.rows[row] for row in at], vocab_size=self.vocab_size
        )
        size, key = len(ids), job.law.key
        positions = range(job.base, job.base + size)
        randoms = noise.uniforms([key] * size, [0] * size, positions, [0] * size, noise.Stream.RANK)
        probs = log_probs.double().exp().cpu().numpy()
        draft_probs = self._draft_probs(job, at) if job.law.mode is Mode.RATIO else None
        numbers = rank_uniforms(probs, np.array(ids, dtype=np.int64), randoms, draft_probs)
        return tuple(numbers.tolist())

    def _draft_probs(self, job: Verification, rows: Sequence[int]) -> Floats:
        """Return what the draft token of each row was drawn from, 0 where there was none.

        Only in RATIO: what a point mass says may depend on the target's own noise in COUPLED.
        Shapes: [rows, V].
        """
        found = np.zeros((len(rows), self.vocab_size))
        if not job.proposed.parents and not job.asked.score_only:
            for place, row in enumerate(rows[: len(job.proposed.listed)]):
                listed_ids, counts = job.proposed.listed[row]
                found[place, listed_ids] = counts / wire.TOTAL_COUNT
        return found
