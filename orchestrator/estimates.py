"""What all requests together have learned about the cost of cycles and the worth of drafts."""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field

from orchestrator.acceptance_estimate import SourceAcceptance
from orchestrator.margin_model import MarginModel
from orchestrator.off_switch import OffSwitch
from orchestrator.verdict import Verdict
from outrider.draft import Draft
from outrider.gain import cycles_ms, rows_of_passes
from outrider.monotone_table import MonotoneTable

RATE = 0.05
FRESH_COUNT = 8
MAX_JUMP = 4.0  # a pass that takes longer than so many times the usual is a hiccup
MAX_ROWS = 4096  # of a pass, as far as estimates go
MAX_STEP_IDS = 4  # a step that feeds more committed ids reads a prompt


@dataclass(slots=True)
class Average:
    """A mean at first, then a moving average."""

    value: float = 0.0
    count: int = 0

    def observe(self, value: float) -> None:
        """Add a sample."""
        self.count += 1
        self.value += max(RATE, 1 / self.count) * (value - self.value)

    def refresh(self) -> None:
        """Let the next samples count for more than the old ones."""
        self.count = min(self.count, FRESH_COUNT)


@dataclass(slots=True)
class Kept:
    """Values by draft length, which the choices of many streams share for as long as little has
    changed."""

    _values: list[float] = field(default_factory=list)
    _made_at: int = 0

    def values(
        self, longest: int, num_changes: int, max_age: int, make: Callable[[int], list[float]]
    ) -> list[float]:
        """Return the values for 0 to ``longest``, made at most ``max_age`` changes ago."""
        is_old = num_changes - self._made_at > max_age or not max_age
        if is_old or longest >= len(self._values):
            self._values, self._made_at = make(longest), num_changes
        return self._values[: longest + 1]


@dataclass(slots=True)
class VerifyCost:
    """What a verification takes at the verifiers of one target, and who shares its passes.

    Units: times in milliseconds. ``by_rows`` is the time of a pass by all its rows; ``beside`` what
        a round trip takes beyond its pass: queueing and the way there and back.
    """

    by_rows: MonotoneTable = field(default_factory=lambda: MonotoneTable(MAX_JUMP))
    beside: Average = field(default_factory=Average)
    own_rows: Average = field(default_factory=Average)
    other_rows: Average = field(default_factory=Average)
    num_leases: Average = field(default_factory=Average)
    queue_share: Average = field(default_factory=lambda: Average(0.0, FRESH_COUNT))
    pool_usage: float = 0.0

    def observe(self, draft: Draft, verdict: Verdict) -> None:
        """Learn from a verdict; ``draft`` is what was verified."""
        self.pool_usage = verdict.pool_usage
        if verdict.num_leases:
            self.queue_share.observe(verdict.num_waiting / verdict.num_leases)
        if verdict.num_passes != 1 or not verdict.rows_in_pass:
            return  # the time of several passes says nothing about one
        self.by_rows.observe(verdict.rows_in_pass, verdict.compute_ms)
        if verdict.num_rows - len(draft) <= MAX_STEP_IDS:
            self.beside.observe(max(verdict.round_trip_ms - verdict.compute_ms, 0.0))
            self.own_rows.observe(verdict.num_rows)
            self.other_rows.observe(max(verdict.rows_in_pass - verdict.num_rows, 0))
            self.num_leases.observe(max(verdict.num_leases, 1))

    @property
    def is_known(self) -> bool:
        """True once a round trip was seen to take any time."""
        return self.beside.value > 0 or self.times_ms(0)[0] > 0

    @property
    def num_sharing(self) -> float:
        """Sequences in a pass: this one, and as many as the rows of others make up."""
        others = self.other_rows.value / max(self.own_rows.value, 1.0)
        return max(min(1.0 + others, self.num_leases.value), 1.0)

    def rows(self, longest: int) -> list[int]:
        """Return the rows of a pass in which every sequence has a draft of 0 to ``longest`` tokens.

        Rows of prompts are those of others that no sequences like this one make up.
        """
        sharing = self.num_sharing
        prompts = max(self.other_rows.value - (sharing - 1) * self.own_rows.value, 0.0)
        return rows_of_passes(sharing, prompts, longest)

    def rows_within(self, share: float) -> int:
        """Return how many rows more lengthen a pass without drafts by no more than a share of it.

        0 while passes of one length only are known.
        """
        if len(self.by_rows.buckets) < 2:
            return 0
        (least,) = self.rows(0)
        most_ms = (1 + share) * self.by_rows(least)
        return bisect_right(range(least + 1, MAX_ROWS), most_ms, key=self.by_rows)

    def times_ms(self, longest: int) -> list[float]:
        """Return what round trips take where every sequence has a draft of 0 to ``longest``
        tokens."""
        beside_ms = self.beside.value
        return [beside_ms + pass_ms for pass_ms in self.by_rows.values(self.rows(longest))]

    @property
    def max_age(self) -> int:
        """Verdicts for which the cost of cycles by draft length is kept: half as many as streams
        have in one cycle, so that each finds it newly made in each of its own cycles. A lone
        stream sees every verdict."""
        return int(self.num_leases.value) // 2


@dataclass(slots=True)
class DraftCost:
    """What drafts of one source of one drafter take, beside one target.

    Units: times in milliseconds. ``wait`` is what cycles really waited, by the number of tokens
        asked for: what was ready by then cost nothing. ``compute`` is what the drafter states, by
        the number of tokens proposed. ``arrival`` is the share of wanted drafts that came.
        ``ahead`` is what passes from asking for drafts behind a pending one to the last of them, by
        the number of outcomes asked for.
    """

    wait: MonotoneTable = field(default_factory=MonotoneTable)
    compute: MonotoneTable = field(default_factory=lambda: MonotoneTable(MAX_JUMP, True))
    arrival: Average = field(default_factory=lambda: Average(1.0, 1))
    ahead: MonotoneTable = field(default_factory=lambda: MonotoneTable(MAX_JUMP))
    _cycles: Kept = field(default_factory=Kept)

    def cycles_ms(self, longest: int, verify: VerifyCost) -> list[float]:
        """Return what cycles take that ask for 0 to ``longest`` tokens, as it was known up to
        ``verify.max_age`` verdicts ago."""
        num_changes = self.wait.num_changes + verify.by_rows.num_changes
        return self._cycles.values(
            longest, num_changes, verify.max_age, lambda longest: self._cycles_ms(longest, verify)
        )

    def _cycles_ms(self, longest: int, verify: VerifyCost) -> list[float]:
        return cycles_ms(self.waits_ms(longest), verify.times_ms(longest), self.arrival.value)

    def waits_ms(self, longest: int) -> list[float]:
        """Return the waits for drafts of 0 to ``longest`` tokens.

        Outside the lengths that were waited for, a wait differs by what the drafter's compute does;
        where all drafts were hidden behind verifications, longer ones are taken to be so as well.
        """
        known = range(min(self.wait.buckets, default=0), max(self.wait.buckets, default=0) + 1)
        least, most = self.wait.values((known[0], known[-1]))
        computes = self.compute.values(range(longest + 1))
        least_ms, most_ms = self.compute.values((known[0], known[-1]))
        shorter = [max(least - least_ms + ms, 0.0) for ms in computes[1 : known[0]]]
        longer = [most - most_ms + ms if most > 0 else 0.0 for ms in computes[known[-1] + 1 :]]
        between = self.wait.values(range(max(known[0], 1), min(known[-1], longest) + 1))
        return [0.0, *shorter, *between, *longer]

    def refresh(self) -> None:
        """Let the next drafts count for more than the old ones."""
        self.wait.refresh()
        self.compute.refresh()
        self.arrival.refresh()
        self.ahead.refresh()


@dataclass(slots=True)
class SourceEstimates:
    """What drafts of one source are worth for one target.

    ``accepted`` is the number of accepted tokens by the number of nodes, for trees; positions in a
    tree have no meaning of their own. ``last_length`` and ``last_gain`` are the latest choice,
    ``last_outcomes`` how many outcomes were last prepared for.
    """

    acceptance: SourceAcceptance = field(default_factory=SourceAcceptance)
    accepted: MonotoneTable = field(default_factory=lambda: MonotoneTable(from_origin=True))
    margins: MarginModel = field(default_factory=MarginModel)
    switch: OffSwitch = field(default_factory=OffSwitch)
    proposes_trees: bool = False
    num_wanted: int = 0
    longest: int = 0
    num_choices: int = 0
    last_length: int = 0
    last_gain: float = 1.0
    last_outcomes: int = 1

    def note_choice(self, num_tokens: int, gain: float) -> None:
        """Remember the latest choice."""
        self.num_choices += 1
        self.last_length, self.last_gain = num_tokens, gain

    def refresh(self) -> None:
        """Let the next drafts count for more than the old ones."""
        self.acceptance.refresh()
        self.accepted.refresh()


@dataclass(frozen=True, slots=True)
class Lane:
    """All that bears on drafts of one source of one drafter for one target."""

    verify: VerifyCost = field(default_factory=VerifyCost)
    draft: DraftCost = field(default_factory=DraftCost)
    source: SourceEstimates = field(default_factory=SourceEstimates)

    def refresh(self) -> None:
        """Let the next drafts count for more than the old ones."""
        self.draft.refresh()
        self.source.refresh()


@dataclass(slots=True)
class Estimates:
    """All lanes, kept for as long as the process lives; keyed by ``Target.key``."""

    targets: dict[str, VerifyCost] = field(default_factory=dict)
    drafts: dict[tuple[str, str, str], DraftCost] = field(default_factory=dict)
    sources: dict[tuple[str, str], SourceEstimates] = field(default_factory=dict)

    def verify(self, target: str) -> VerifyCost:
        """Return what is known of verifications of a target."""
        return self.targets.setdefault(target, VerifyCost())

    def lane(self, target: str, drafter: str, source: str) -> Lane:
        """Return what is known of a source of the drafter at an address, empty for lookup."""
        return Lane(
            self.verify(target),
            self.drafts.setdefault((target, drafter, source), DraftCost()),
            self.sources.setdefault((target, source), SourceEstimates()),
        )
