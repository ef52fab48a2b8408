"""What came of a drafter's blocks is counted once a cycle; blocks that nobody used are counted."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from orchestrator.agreement import Agreement
from orchestrator.board import DraftBlock, DraftBoard
from orchestrator.draft_length import DraftLength
from orchestrator.drafting import Drafting
from orchestrator.patience import Patience
from orchestrator.policy import AutoLength, ConstantLength, LengthSchedule, SpeculationPlan
from orchestrator.receipt import Stats
from orchestrator.sequence import Event, Sequence
from orchestrator.verdict import CommittedToken, Origin
from outrider.constraint import Constraints
from outrider.draft import Draft
from outrider.lookup.ngram import NgramIndex
from outrider.policy import ON, AfterError, AfterLowAgreement, Fallbacks, MinAgreement
from outrider.sampling import Constraint, ConstraintKind, SamplingParams
from tests.toy import toy_tokenizer
from tests.unit.orchestrator.test_estimates import verdict

PROMPT = (1, 2, 3)
WAIT_S = 0.05


def block(*draft: int, base: int, path: tuple[int, ...] = ()) -> DraftBlock:
    return DraftBlock(base, path, Draft(draft, "model"))


@dataclass(slots=True)
class ScriptedLease:
    """Answers every advance that asks for a present sequence with what the script says."""

    board: DraftBoard
    script: Callable[[Sequence], DraftBlock | None]
    awaits: bool = False
    """An answer is under way that will fit."""
    is_alive: bool = True
    is_trusted: bool = True
    lost_reason: str = ""
    num_heals: int = 0
    num_asked: int = 0
    patience: Patience = field(default_factory=Patience)

    def answers(self, sequence: Sequence) -> bool:
        return self.awaits

    async def advance(
        self, sequence: Sequence, pending: Draft | None, num_tokens: int, *, max_outcomes: int = 1
    ) -> None:
        self.num_asked += 1
        answer = self.script(sequence)
        self.awaits = answer is None  # the script has nothing yet: it stays under way
        if answer is not None:
            self.board.post(answer)

    def judge(self, failure: str | None) -> None: ...

    def close(self) -> None: ...


@dataclass(slots=True)
class Scene:
    """A sequence in its second cycle, four tokens long, with an open lease."""

    script: Callable[[Sequence], DraftBlock | None] = lambda sequence: None
    wait_s: float = WAIT_S
    schedule: LengthSchedule | AutoLength = field(default_factory=lambda: ConstantLength(2))
    stats: Stats = field(default_factory=Stats)
    board: DraftBoard = field(default_factory=DraftBoard)
    sequence: Sequence = field(default_factory=lambda: Sequence("s", PROMPT, 40))
    lease: ScriptedLease = field(init=False)
    drafting: Drafting = field(init=False)

    def __post_init__(self) -> None:
        self.lease = ScriptedLease(self.board, self.script)
        plan = SpeculationPlan(("model",), self.schedule, self.wait_s, False, ON)
        self.drafting = Drafting(
            plan=plan,
            board=self.board,
            stats=self.stats,
            open_lease=lambda: self.lease,
            clock=lambda: 100.0,
            length=DraftLength(plan),
            lookup_length=DraftLength(plan),
        )
        self.sequence.apply(Event.VERIFIER_FOUND)
        self.sequence.commit([CommittedToken(4, Origin.ONLY)], None)

    async def draft(self) -> tuple[int, ...]:
        return (await self.drafting.draft_for(self.sequence)).token_ids

    @property
    def blocks(self) -> dict[str, int]:
        """What was counted, the stale ones of the board included."""
        counted = {result.value: n for result, n in self.stats.blocks.items()}
        stale = self.board.num_stale_blocks
        return counted | ({"stale": stale} if stale else {})


async def test_a_block_on_the_board_that_fits_is_a_hit():
    scene = Scene()
    scene.board.post(block(7, 8, base=4))
    assert await scene.draft() == (7, 8)
    assert scene.blocks == {"hit": 1}
    assert scene.lease.num_asked == 0


async def test_a_draft_that_was_asked_for_again_within_the_wait_is_a_miss():
    scene = Scene()
    await scene.drafting.prepare_next(scene.sequence, Draft())
    scene.lease.script = lambda sequence: block(7, 8, base=4)
    drafting = asyncio.create_task(scene.draft())
    await asyncio.sleep(0)
    scene.lease.awaits = False  # it came, for another outcome
    scene.board.post(block(9, base=3, path=(1,)))
    assert await drafting == (7, 8)
    assert scene.blocks == {"miss": 1, "stale": 1}


async def test_a_block_drafted_ahead_that_comes_within_the_wait_is_a_hit():
    scene = Scene()
    await scene.drafting.prepare_next(scene.sequence, Draft())
    drafting = asyncio.create_task(scene.draft())
    await asyncio.sleep(0)
    scene.board.post(block(7, 8, base=4))
    assert await drafting == (7, 8)
    assert scene.blocks == {"hit": 1}


async def test_a_drafter_that_must_begin_anew_is_a_miss_though_its_draft_is_used():
    scene = Scene(lambda sequence: block(7, 8, base=len(sequence)))
    scene.board.post(block(9, base=3, path=(5,)))  # guessed 5, it was 4
    assert await scene.draft() == (7, 8)
    assert scene.lease.num_asked == 1
    assert scene.blocks == {"miss": 1, "stale": 1}
    assert scene.board.num_discarded_tokens == 1


async def test_without_waiting_a_block_that_does_not_fit_is_a_miss():
    scene = Scene(wait_s=0.0)
    scene.drafting.lease = scene.lease
    scene.board.post(block(9, base=3, path=(5,)))
    assert await scene.draft() == ()
    assert scene.blocks == {"miss": 1, "stale": 1}


@pytest.mark.parametrize("wait_s", [0.0, WAIT_S])
async def test_a_drafter_that_is_still_at_work_is_late(wait_s):
    scene = Scene(wait_s=wait_s)
    await scene.drafting.prepare_next(scene.sequence, Draft())
    assert await scene.draft() == ()
    assert scene.blocks == {"late": 1}
    assert scene.stats.fallbacks == {"late_draft": 1}


async def test_without_a_drafter_nothing_is_counted():
    scene = Scene()
    await scene.drafting.prepare_next(scene.sequence, Draft())
    scene.lease.awaits, scene.lease.is_alive, scene.lease.lost_reason = False, False, "drafter_full"
    assert await scene.draft() == ()
    assert scene.blocks == {}
    assert scene.stats.fallbacks == {"drafter_full": 1, "no_drafter": 1}


async def test_what_is_left_at_the_end_is_stale():
    scene = Scene()
    scene.board.post(block(7, 8, base=4, path=(9,)))
    scene.drafting.close()
    assert scene.blocks == {"stale": 1}
    assert scene.board.num_discarded_tokens == 2


async def test_cycles_that_want_no_draft_count_nothing():
    scene = Scene()
    scene.sequence = Sequence("s", PROMPT, 40)
    assert await scene.draft() == ()
    assert scene.blocks == {}
    assert scene.stats.fallbacks == {"prefill": 1}


async def test_a_source_that_is_switched_off_is_neither_asked_nor_waited_for():
    scene = Scene(schedule=AutoLength(8))
    scene.drafting.length.lane.source.switch.is_off = True
    await scene.drafting.prepare_next(scene.sequence, Draft())
    scene.sequence.commit([CommittedToken(5, Origin.ONLY)], None)
    assert await scene.draft() == ()
    assert scene.lease.num_asked == 0
    assert scene.blocks == {}
    assert scene.stats.fallbacks == {"switched_off": 1}
    assert scene.stats.draft_lengths == {0: 1}
    assert scene.stats.length_reasons == {"switched_off": 1}


async def test_where_the_drafter_is_off_lookup_drafts():
    scene = Scene(schedule=AutoLength(8))
    scene.drafting.length.lane.source.switch.is_off = True
    scene.drafting.index = NgramIndex()
    for token_id in (7, 8, 9, 7, 8):
        scene.sequence.commit([CommittedToken(token_id, Origin.ONLY)], None)
    assert (await scene.draft())[:2] == (9, 7)
    assert scene.stats.length_reasons == {"switched_off": 1}, "the drafter's choice is told"
    assert scene.stats.fallbacks == {}


async def test_a_length_is_chosen_when_its_draft_is_asked_for_and_kept_for_its_cycle():
    scene = Scene(schedule=AutoLength(8))
    await scene.drafting.prepare_next(scene.sequence, Draft())
    chosen = scene.drafting.length.choose(scene.sequence.cycle + 1)
    scene.drafting.length.lane.source.switch.is_off = True
    scene.sequence.commit([CommittedToken(5, Origin.ONLY)], None)
    scene.board.post(block(*range(20, 20 + chosen.num_tokens), base=5))
    assert len(await scene.draft()) == chosen.num_tokens == 4


async def test_a_wait_that_no_longer_pays_is_cut_short_and_not_held_against_the_drafter():
    scene = Scene(wait_s=30.0, schedule=AutoLength(8))
    length = scene.drafting.length
    length.num_tries_left = 1  # a cycle that is neither warm-up nor told
    length.lane.verify.by_rows.observe(1, 1.0)  # ms
    await scene.drafting.prepare_next(scene.sequence, Draft())
    scene.sequence.commit([CommittedToken(5, Origin.ONLY)], None)
    assert await scene.draft() == ()  # after 4 ms, not 30 s
    assert scene.blocks == {"late": 1}
    assert scene.lease.patience.num_late == 0
    assert length.lane.draft.arrival.value < 1


async def test_what_lookup_copies_is_cut_to_what_a_constraint_allows():
    """The digits that followed the same letters may not follow here."""
    tokenizer = toy_tokenizer()
    a, b, one = (tokenizer.token_to_id(each) for each in "xy1")
    sampling = SamplingParams(
        constraint=Constraint(ConstraintKind.REGEX, "xyx+"), stop_token_ids=(510,)
    )
    for constrained, expected in ((None, (a, one)), (Constraints(tokenizer).open(sampling), (a,))):
        scene = Scene()
        plan = SpeculationPlan(("model",), ConstantLength(2), WAIT_S, True, ON)
        scene.drafting.plan, scene.drafting.open_lease = plan, lambda: None
        scene.drafting.index, scene.drafting.constrained = NgramIndex(), constrained
        scene.sequence = Sequence("s", (a, b, a, one, one), 40)
        scene.sequence.apply(Event.VERIFIER_FOUND)
        scene.sequence.commit([CommittedToken(each, Origin.ONLY) for each in (a, b)], None)
        assert await scene.draft() == expected


def plan_after(errors: AfterError, scene: Scene) -> None:
    """Let the scene's class say what follows an error."""
    fallbacks = Fallbacks(errors=errors)
    scene.drafting.plan = replace(scene.drafting.plan, fallbacks=fallbacks, lookup=True)
    scene.drafting.index = NgramIndex()
    for token_id in (7, 8, 9, 7, 8):
        scene.sequence.commit([CommittedToken(token_id, Origin.ONLY)], None)


@pytest.mark.parametrize(
    ("errors", "drafts", "reasons"),
    [
        (AfterError.RETRY, (9, 7), {"drafter_lost": 1}),
        (AfterError.LOOKUP, (9, 7), {"drafter_lost": 1}),
        (AfterError.TARGET_ONLY, (), {"drafter_lost": 1, "after_error": 1}),
    ],
)
async def test_after_the_loss_of_a_drafter(errors, drafts, reasons):
    scene = Scene()
    plan_after(errors, scene)
    scene.drafting.lease = scene.lease
    scene.lease.is_alive, scene.lease.lost_reason = False, "drafter_lost"
    assert await scene.draft() == drafts
    assert scene.stats.fallbacks == reasons
    scene.lease.is_alive, scene.drafting.clock = True, lambda: 1e9  # one could be had again
    scene.drafting.index = None
    await scene.draft()
    assert (scene.drafting.lease is scene.lease) is (errors is AfterError.RETRY)


@pytest.mark.parametrize("errors", list(AfterError))
async def test_after_a_draft_that_is_invalid(errors):
    scene = Scene()
    plan_after(errors, scene)
    scene.drafting.lease = scene.lease
    invalid = replace(verdict(1), invalid_draft="token_ids[0]: 600 is not below 512")
    scene.drafting.learn(Draft((600,), "model"), invalid)
    kept = errors is AfterError.RETRY
    assert (scene.drafting.lease is scene.lease) is kept
    assert scene.drafting.has_given_up is not kept
    assert (scene.drafting.index is None) is (errors is AfterError.TARGET_ONLY)


async def test_a_full_drafter_is_no_error():
    scene = Scene()
    plan_after(AfterError.TARGET_ONLY, scene)
    scene.drafting.lease = scene.lease
    scene.lease.is_alive, scene.lease.lost_reason = False, "drafter_full"
    assert await scene.draft() == (9, 7)
    assert not scene.drafting.has_given_up


@pytest.mark.parametrize(
    ("low_agreement", "drafts"),
    [(AfterLowAgreement.TARGET_ONLY, ()), (AfterLowAgreement.LOOKUP, (9, 7))],
)
async def test_where_the_class_disagrees_with_the_drafter(low_agreement, drafts):
    scene = Scene()
    plan_after(AfterError.RETRY, scene)
    fallbacks = Fallbacks(low_agreement=low_agreement)
    scene.drafting.plan = replace(scene.drafting.plan, fallbacks=fallbacks)
    agreement = Agreement(MinAgreement(rate=0.5))
    agreement.switch.is_off = True
    scene.drafting.length.agreement = agreement
    assert await scene.draft() == drafts
    assert scene.lease.num_asked == 0
    assert scene.stats.length_reasons == {"low_agreement": 1}
    assert scene.stats.fallbacks == ({} if drafts else {"low_agreement": 1})
