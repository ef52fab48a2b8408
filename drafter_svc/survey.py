"""Reads a pending draft at every place where its verification may stop, and ranks the outcomes."""

from dataclasses import dataclass

from drafter_svc.outcomes import Calibration, as_it_is, rank
from drafter_svc.source import Foreseen, Opening, Wanted
from outrider.distribution import RowSampling
from outrider.engine import JobInput, SequenceCache
from outrider.proposal import SHARPNESS, Likely, Place
from outrider.sampling import Mode


@dataclass(slots=True)
class Survey:
    """The job before drafts for several outcomes: one pass over the pending draft, nothing drawn.

    Its rows stay in the cache, and drafts of all outcomes build on them.
    """

    cache: SequenceCache
    opening: Opening
    wanted: Wanted
    calibration: Calibration
    priority: int = 0
    done: bool = False
    next: JobInput | None = None
    paths: tuple[tuple[int, ...], ...] = ()
    shares: tuple[float, ...] = ()
    """What the model gives each pending token."""
    compute_ms: float = 0.0
    num_wanted: int = 1
    takes_likely: bool = True

    @property
    def pending(self) -> tuple[int, ...]:
        """The draft that is being verified."""
        return self.wanted.pending or ()

    @property
    def num_rows(self) -> int:
        """Places where the target may stop: in front of every pending token, and behind all."""
        return 1 + len(self.pending)

    def start(self) -> JobInput:
        """Return what the engine feeds."""
        wanted = self.wanted
        ids = wanted.token_ids + self.pending
        return JobInput(wanted.start, ids, num_logit_rows=self.num_rows, committed=wanted.base)

    def rows(self) -> list[RowSampling]:
        """Return the row parameters of what follows at every place."""
        return list(self.wanted.state.rows(self.pending))

    def places(self) -> list[Place]:
        """Return where what follows at every place stands."""
        key, base = self.opening.noise_key, self.wanted.base
        return [Place(key=key, position=base + i) for i in range(self.num_rows)]

    def take_likely(self, places: Likely) -> None:
        """Rank the outcomes by what is likely at the places."""
        mode, acceptance = self.opening.mode, self.calibration.acceptance
        if mode is Mode.COUPLED:  # a tree's leads are sharpened; odds between places are not
            shares = places.shares ** (1 / SHARPNESS)
            places = Likely(places.ids, shares / shares.sum(-1, keepdims=True))
        candidates = places.candidates()
        self.shares = tuple(
            dict(each).get(token_id, 0.0)
            for each, token_id in zip(candidates, self.pending, strict=False)
        )
        found = rank(
            self.pending,
            candidates,
            self.wanted.max_outcomes,
            acceptance=acceptance,
            # In RATIO the target draws what follows, by itself.
            rightness=as_it_is if mode is Mode.RATIO else acceptance,
        )
        self.paths = tuple(each.path(self.pending) for each in found)
        self.done = True

    def learn_from(self, wanted: Wanted) -> None:
        """Take in what became of the pending draft, from a later advance."""
        base = self.wanted.base
        if wanted.start > base or wanted.base <= base:
            return
        committed = wanted.token_ids[base - wanted.start :]
        num_accepted = 0
        for said, token_id in zip(committed, self.pending, strict=False):
            if said != token_id:
                break
            num_accepted += 1
        if num_accepted < len(committed):
            self.calibration.learn(self.shares, num_accepted)

    def foreseen(self) -> Foreseen:
        """Return the outcomes to draft for."""
        return Foreseen(self.paths, self.compute_ms)
