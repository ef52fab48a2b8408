"""Draft sources "model" and "parallel".

A causal language model that proposes token after token, or all tokens of a draft in one pass;
batched over sequences.
"""

import asyncio
import itertools
from collections import defaultdict
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

import torch

from drafter_svc.outcomes import Calibration
from drafter_svc.product_tree import product_tree
from drafter_svc.source import Block, Foreseen, Opening, Wanted
from drafter_svc.survey import Survey
from outrider import sources
from outrider.distribution import RowSampling
from outrider.draft import Draft
from outrider.engine import CacheTooShort, Engine, Finished, JobInput, OutOfBlocks, SequenceCache
from outrider.proposal import NUM_LISTED, Likely, Place, Proposal, likely, propose
from outrider.sampling import Mode
from outrider.tree import GrowingTree


@dataclass(frozen=True, slots=True)
class Masks:
    """How a model drafts: ``num_parallel`` tokens a pass, all but one in place of mask tokens."""

    num_parallel: int = 1
    token_id: int = 0
    makes_trees: bool = False
    """One pass, and a tree of what is likely at each place; else a chain."""

    @property
    def source(self) -> str:
        """Name on the wire."""
        if self.makes_trees:
            return sources.PARALLEL_TREE
        return sources.MODEL if self.num_parallel == 1 else sources.PARALLEL


ONE_BY_ONE = Masks()


@dataclass(slots=True)
class Drafting:
    """The job of one advance: feed what is known, then draw tokens.

    Behind a pending draft the first drawn token is the guess of what the target will add to it.
    ``masks`` gives how many tokens a pass draws: one behind the last known token, and one in place
    of every mask token behind that.
    A draft for one of several outcomes has that outcome's ``path`` in place of the pending draft
    and the guess, and goes on from the rows of the sequence's own cache, ``parent``.
    """

    cache: SequenceCache
    opening: Opening
    wanted: Wanted
    max_length: int
    masks: "Masks"
    path: tuple[int, ...] = ()
    parent: SequenceCache | None = None
    priority: int = 0
    done: bool = False
    next: JobInput | None = None
    drawn: list[int] = field(default_factory=list)
    distributions: list[tuple[bytes, bytes]] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)
    tree: GrowingTree | None = None
    compute_ms: float = 0.0

    @property
    def known(self) -> tuple[int, ...]:
        """Ids that are known before the first draw: committed ones, then what may follow them."""
        return self.wanted.token_ids + (self.path or self.wanted.pending or ())

    @property
    def num_guesses(self) -> int:
        """1 behind a pending draft, where the first drawn token is no part of the draft."""
        return 0 if self.path or self.wanted.pending is None else 1

    @property
    def takes_likely(self) -> bool:
        """True where a pass is asked what is likely, False where tokens are drawn from it."""
        return self.masks.makes_trees

    @property
    def num_wanted(self) -> int:
        """Tokens to draw, the guess included, as far as the context goes."""
        num = self.wanted.num_draft_tokens
        if self.masks.makes_trees:  # nodes are wanted; they stand at as many places as one pass has
            num = min(num, self.masks.num_parallel - self.num_guesses)
        num += self.num_guesses if num else 0
        room = self.max_length - self.num_known
        return max(0, min(num, room))

    @property
    def num_known(self) -> int:
        """Length of the sequence as far as it is known, the pending draft included."""
        return self.wanted.start + len(self.known)

    @property
    def num_rows(self) -> int:
        """Tokens that the present pass draws."""
        return max(1, min(self.num_wanted - len(self.drawn), self.masks.num_parallel))

    def start(self) -> JobInput:
        """Return what the engine feeds first.

        Raises: CacheTooShort if the parent does not hold the path any more.
        """
        if self.parent is None:
            return self._input(self.wanted.start, self.known)
        held = self.num_known - 1
        self.cache.split_from(self.parent, held)
        return self._input(held, self.path[-1:])

    def _input(self, begin: int, token_ids: Sequence[int]) -> JobInput:
        num_rows = self.num_rows
        masked = [*token_ids, *[self.masks.token_id] * (num_rows - 1)]
        return JobInput(begin, masked, num_logit_rows=num_rows, committed=self.wanted.base)

    def rows(self) -> list[RowSampling]:
        """Return the row parameters of the tokens that the pass draws."""
        path = [*self.known[len(self.wanted.token_ids) :], *self.drawn]
        return [self.wanted.state.row(path, num_unknown=i) for i in range(self.num_rows)]

    def places(self) -> list[Place]:
        """Return where the tokens that the pass draws stand."""
        return [self._place(len(self.drawn) + i) for i in range(self.num_rows)]

    def _place(self, index: int) -> Place:
        return Place(
            key=self.opening.noise_key,
            position=self.num_known + index,
            node=index - self.num_guesses,
            cycle=self.wanted.for_cycle,
            is_guess=index < self.num_guesses,
        )

    def take(self, proposals: Sequence[Proposal]) -> None:
        """Keep the drawn tokens of a chain up to one that ends the text.

        Ask for another pass unless enough were drawn. In RATIO the number was fixed beforehand:
        when a draft is ready must not depend on what was drawn.
        """
        self._forget_masks()
        ends = False
        for proposal in proposals:
            self.drawn.append(proposal.token_id)
            self.margins.append(proposal.logit_margin)
            if proposal.distribution is not None:
                self.distributions.append(proposal.distribution)
            stop_ids = self.opening.sampling.stop_token_ids
            if self.opening.mode is not Mode.RATIO and proposal.token_id in stop_ids:
                ends = True
                break
        if len(self.drawn) >= self.num_wanted or ends:
            self.done = True
        else:
            begin = self.cache.length
            self.next = self._input(begin, self.drawn[begin - self.num_known :])

    def take_likely(self, places: Likely) -> None:
        """Make a tree of what is likely at the places of the pass."""
        self._forget_masks()
        skip = self.num_guesses
        self.drawn = places.ids[:skip, 0].tolist()
        self.tree = product_tree(places[skip:].candidates(), self.wanted.num_draft_tokens)
        self.done = True

    def _forget_masks(self) -> None:
        """Masks are no part of the sequence."""
        self.cache.truncate(self.num_known + len(self.drawn))

    def block(self) -> Block:
        """Return the proposal."""
        skip = self.num_guesses
        path = self.path or (*(self.wanted.pending or ()), *self.drawn[:skip])
        if self.tree is not None:
            ids, parents = tuple(self.tree.token_ids), tuple(self.tree.parents)
            draft = Draft(ids, self.masks.source, parents=parents)
            scores = tuple(self.tree.scores)
            return Block(path=path, draft=draft, compute_ms=self.compute_ms, scores=scores)
        draft = Draft(
            token_ids=tuple(self.drawn[skip:]),
            source=self.masks.source,
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
    draft_ids: torch.Tensor | None = None
    """Ids that the model's logits stand for, [D] int64; None: all, in order."""

    def __call__(self, finished: list[Finished]) -> None:
        """Draw; runs on the engine's thread."""
        drawing: list[Finished] = []
        for entry in finished:
            job: Drafting | Survey = entry.job  # type: ignore[assignment]
            job.next = None
            job.compute_ms += entry.compute_ms
            job.cache.commit(min(job.wanted.base, job.cache.length))
            if job.num_wanted:
                drawing.append(entry)
            else:
                job.done = True
        if not drawing:
            return
        for (mode, vocab_size, takes_likely), group in _by_law(drawing).items():
            jobs = [job for job, _ in group]
            logits = torch.cat([rows for _, rows in group])  # [R, V]
            rows = [row for job in jobs for row in job.rows()]
            places = [place for job in jobs for place in job.places()]
            size = min(self.vocab_size, vocab_size)
            if takes_likely:
                found = likely(
                    logits, rows, places, mode=mode, vocab_size=size, draft_ids=self.draft_ids
                )
                for job, own in zip(jobs, _parts(jobs), strict=True):
                    job.take_likely(found[own])
                continue
            proposals = propose(
                logits,
                rows,
                places,
                mode=mode,
                vocab_size=size,
                head_size=self.head_size,
                num_listed=self.num_listed,
                draft_ids=self.draft_ids,
            )
            for job, own in zip(jobs, _parts(jobs), strict=True):
                assert isinstance(job, Drafting)
                job.take(proposals[own])


def _by_law(
    finished: list[Finished],
) -> dict[tuple[Mode, int, bool], list[tuple[Drafting | Survey, torch.Tensor]]]:
    """Group the rows that one call can work on: of the same mode, target vocabulary and use."""
    groups: dict[tuple[Mode, int, bool], list[tuple[Drafting | Survey, torch.Tensor]]]
    groups = defaultdict(list)
    for entry in finished:
        job: Drafting | Survey = entry.job  # type: ignore[assignment]
        law = (job.opening.mode, job.opening.vocab_size, job.takes_likely)
        groups[law].append((job, entry.logits))
    return groups


def _parts(jobs: Sequence[Drafting | Survey]) -> list[slice]:
    """Return each job's rows among those of all."""
    ends = list(itertools.accumulate(job.num_rows for job in jobs))
    return [slice(begin, end) for begin, end in itertools.pairwise([0, *ends])]


@dataclass(slots=True)
class ModelLease:
    """One sequence's KV at the draft model."""

    engine: Engine
    cache: SequenceCache
    opening: Opening
    max_length: int
    masks: Masks
    calibration: Calibration
    survey: Survey | None = None
    """Of the latest pending draft, until it is known what became of it."""

    @property
    def cache_length(self) -> int:
        """Committed positions with valid KV."""
        return self.cache.committed_length

    async def draft(self, wanted: Wanted) -> Block:
        """Feed the ids and draw; a cancelled call keeps the rows that were computed."""
        self._learn(wanted)
        job = Drafting(self.cache, self.opening, wanted, self.max_length, self.masks)
        if job.num_known > self.max_length:
            return Block(path=wanted.pending or (), draft=Draft(source=self.masks.source))
        await self.engine.run(job)
        return job.block()

    async def foresee(self, wanted: Wanted) -> Foreseen:
        """Rank the outcomes by what the model deems likely at every place of the pending draft."""
        self._learn(wanted)
        if wanted.base + len(wanted.pending or ()) + 1 >= self.max_length:
            return Foreseen()  # behind it there is no room for a draft
        survey = Survey(self.cache, self.opening, wanted, self.calibration)
        await self.engine.run(survey)
        self.survey = survey
        return survey.foreseen()

    def _learn(self, wanted: Wanted) -> None:
        if self.survey is not None:
            self.survey.learn_from(wanted)
            self.survey = None

    async def draft_each(self, wanted: Wanted, foreseen: Foreseen) -> AsyncGenerator[Block, None]:
        """Draft for all outcomes side by side, so that they share passes.

        One for which the KV pool has no room, or that finds its beginning preempted, is left out.
        """
        jobs = [self._branch(wanted, path, foreseen.compute_ms) for path in foreseen.paths]
        tasks = [asyncio.create_task(self.engine.run(job)) for job in jobs]
        waiting = set(tasks)
        try:
            while waiting:
                done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
                for task, job in zip(tasks, jobs, strict=True):
                    if task not in done:
                        continue
                    try:
                        task.result()
                    except (CacheTooShort, OutOfBlocks):
                        continue
                    yield job.block()
        finally:
            for task in tasks:
                task.cancel()
            for job in jobs:
                self.engine.release(job.cache)
            await asyncio.gather(*tasks, return_exceptions=True)

    def _branch(self, wanted: Wanted, path: tuple[int, ...], compute_ms: float) -> Drafting:
        """Return the job that drafts for one outcome, with a cache of its own."""
        cache = self.engine.open(salt=self.opening.cache_salt)
        job = Drafting(cache, self.opening, wanted, self.max_length, self.masks, path, self.cache)
        job.compute_ms = compute_ms
        return job

    def close(self) -> None:
        """Give the KV back."""
        self.engine.release(self.cache)


@dataclass(slots=True)
class ModelSource:
    """Drafts with the model that the engine runs.

    ``calibrations`` are what its drafts were found to be worth, by all sequences of a mode; in
    RATIO each sequence has its own, since nothing of other requests may play a part there.
    """

    engine: Engine
    max_length: int
    masks: Masks = ONE_BY_ONE
    calibrations: dict[Mode, Calibration] = field(
        default_factory=lambda: {mode: Calibration.of(mode) for mode in Mode}
    )
    needs_tokenizer: bool = True
    num_continuations: int = 0
    feature_layers: tuple[int, ...] = ()
    feature_width: int = 0

    @property
    def name(self) -> str:
        """Name on the wire."""
        return self.masks.source

    @property
    def makes_trees(self) -> bool:
        """True where drafts are trees."""
        return self.masks.makes_trees

    def open(self, opening: Opening) -> ModelLease:
        """Begin with an empty cache."""
        cache = self.engine.open(salt=opening.cache_salt)
        mode = opening.mode
        calibration = Calibration.of(mode) if mode is Mode.RATIO else self.calibrations[mode]
        return ModelLease(self.engine, cache, opening, self.max_length, self.masks, calibration)
