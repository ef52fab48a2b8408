"""Draft source "model".

A causal language model that proposes token after token, batched over sequences.
"""

from collections import defaultdict
from dataclasses import dataclass, field

import torch

from drafter_svc.source import Block, Opening, Wanted
from outrider.distribution import RowSampling
from outrider.draft import Draft
from outrider.engine import Engine, Finished, JobInput, SequenceCache
from outrider.proposal import NUM_LISTED, Place, Proposal, propose
from outrider.sampling import Mode

NAME = "model"


@dataclass(slots=True)
class Drafting:
    """The job of one advance: feed what is known, then draw a token a pass.

    Behind a pending draft the first drawn token is the guess of what the target will add to it.
    """

    cache: SequenceCache
    opening: Opening
    wanted: Wanted
    max_length: int
    priority: int = 0
    done: bool = False
    next: JobInput | None = None
    drawn: list[int] = field(default_factory=list)
    distributions: list[tuple[bytes, bytes]] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)
    compute_ms: float = 0.0

    @property
    def known(self) -> tuple[int, ...]:
        """Ids that are fed before the first draw: committed ones, then the pending draft."""
        return self.wanted.token_ids + (self.wanted.pending or ())

    @property
    def num_guesses(self) -> int:
        """1 behind a pending draft, where the first drawn token is no part of the draft."""
        return 0 if self.wanted.pending is None else 1

    @property
    def num_wanted(self) -> int:
        """Tokens to draw, the guess included, as far as the context goes."""
        num = self.wanted.num_draft_tokens
        num += self.num_guesses if num else 0
        room = self.max_length - self.wanted.start - len(self.known)
        return max(0, min(num, room))

    def start(self) -> JobInput:
        """Return what the engine feeds first."""
        begin, ids = self.wanted.start, list(self.known)
        return JobInput(begin, ids, num_logit_rows=1, committed=self.wanted.base)

    def row(self) -> RowSampling:
        """Return the row parameters of the next drawn token.

        The target's, so that both choose alike.
        """
        params, position = self.opening.sampling, self.cache.length
        masked = position < self.opening.num_prompt_tokens + params.min_tokens
        return RowSampling(
            temperature=params.temperature,
            top_k=params.top_k,
            top_p=params.top_p,
            min_p=params.min_p,
            banned_ids=params.stop_token_ids if masked else (),
        )

    def place(self) -> Place:
        """Return where the next drawn token stands."""
        num_drawn = len(self.drawn)
        return Place(
            key=self.opening.noise_key,
            position=self.cache.length,
            node=num_drawn - self.num_guesses,
            cycle=self.wanted.for_cycle,
            is_guess=num_drawn < self.num_guesses,
        )

    def take(self, proposal: Proposal) -> None:
        """Keep a drawn token.

        Ask for another pass unless enough were drawn or the text ends with it. In RATIO the number
        was fixed beforehand: when a draft is ready must not depend on what was drawn.
        """
        token_id = proposal.token_id
        self.drawn.append(token_id)
        self.margins.append(proposal.logit_margin)
        if proposal.distribution is not None:
            self.distributions.append(proposal.distribution)
        ends = (
            self.opening.mode is not Mode.RATIO and token_id in self.opening.sampling.stop_token_ids
        )
        if len(self.drawn) >= self.num_wanted or ends:
            self.done = True
        else:
            begin = self.cache.length
            self.next = JobInput(begin, [token_id], num_logit_rows=1, committed=self.wanted.base)

    def block(self) -> Block:
        """Return the proposal."""
        pending, skip = self.wanted.pending, self.num_guesses
        path = () if pending is None else (*pending, *self.drawn[:1])
        draft = Draft(
            token_ids=tuple(self.drawn[skip:]),
            source=NAME,
            distributions=tuple(self.distributions[skip:]),
            logit_margins=tuple(self.margins[skip:]),
        )
        return Block(path=path, draft=draft, compute_ms=self.compute_ms)


@dataclass(slots=True)
class DraftingHead:
    """Draws the next token of every sequence in the pass with the noise that the target will
    use."""

    vocab_size: int
    head_size: int
    num_listed: int = NUM_LISTED
    """Ids that travel with every token, and in RATIO are all that it is drawn from."""

    def __call__(self, finished: list[Finished]) -> None:
        """Draw; runs on the engine's thread."""
        drawing: list[Finished] = []
        for entry in finished:
            job: Drafting = entry.job  # type: ignore[assignment]
            job.next = None
            job.compute_ms += entry.compute_ms
            job.cache.commit(min(job.wanted.base, job.cache.length))
            if job.num_wanted:
                drawing.append(entry)
            else:
                job.done = True
        if not drawing:
            return
        for (mode, vocab_size), group in _by_law(drawing).items():
            jobs = [job for job, _ in group]
            proposals = propose(
                torch.cat([logits for _, logits in group]),  # [R, V]
                [job.row() for job in jobs],
                [job.place() for job in jobs],
                mode=mode,
                vocab_size=min(self.vocab_size, vocab_size),
                head_size=self.head_size,
                num_listed=self.num_listed,
            )
            for job, proposal in zip(jobs, proposals, strict=True):
                job.take(proposal)


def _by_law(
    finished: list[Finished],
) -> dict[tuple[Mode, int], list[tuple[Drafting, torch.Tensor]]]:
    """Group the rows that one call can draw: of the same mode and the same target vocabulary."""
    groups: dict[tuple[Mode, int], list[tuple[Drafting, torch.Tensor]]] = defaultdict(list)
    for entry in finished:
        job: Drafting = entry.job  # type: ignore[assignment]
        groups[job.opening.mode, job.opening.vocab_size].append((job, entry.logits))
    return groups


@dataclass(slots=True)
class ModelLease:
    """One sequence's KV at the draft model."""

    engine: Engine
    cache: SequenceCache
    opening: Opening
    max_length: int

    @property
    def cache_length(self) -> int:
        """Committed positions with valid KV."""
        return self.cache.committed_length

    async def draft(self, wanted: Wanted) -> Block:
        """Feed the ids and draw; a cancelled call keeps the rows that were computed."""
        job = Drafting(self.cache, self.opening, wanted, self.max_length)
        if wanted.start + len(job.known) > self.max_length:
            return Block(path=wanted.pending or (), draft=Draft(source=NAME))
        await self.engine.run(job)
        return job.block()

    def close(self) -> None:
        """Give the KV back."""
        self.engine.release(self.cache)


@dataclass(slots=True)
class ModelSource:
    """Drafts with the model that the engine runs."""

    engine: Engine
    max_length: int
    name: str = NAME
    needs_tokenizer: bool = True

    def open(self, opening: Opening) -> ModelLease:
        """Begin with an empty cache."""
        cache = self.engine.open(salt=opening.cache_salt)
        return ModelLease(self.engine, cache, opening, self.max_length)
