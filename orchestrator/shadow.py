"""Drafts that are made and judged, and never used: the request runs as if there were none.

In GREEDY and COUPLED the target's tokens do not depend on drafts. So what would have been accepted
can be read off the output: beside the request runs the ordinary decode loop on a second, virtual
sequence, whose "verifier" waits for the tokens that the request goes on to have. The real verifier
sees exactly the steps of a target-only request. In RATIO the draft's probabilities decide, which
only the verifier can judge: there drafts that are ready go along with a step, ``score_only``, where
the pass has room for their rows.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Seq
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import structlog

from orchestrator.decode import decode
from orchestrator.drafting import Drafting
from orchestrator.estimates import VerifyCost
from orchestrator.feedback import FeedbackWanted
from orchestrator.kept_features import StepFeatures
from orchestrator.pressure import Pressure
from orchestrator.receipt import Stats
from orchestrator.sequence import Event, Sequence
from orchestrator.transcript import Delivery
from orchestrator.verdict import CommittedToken, Origin, Verdict, committed_tokens
from outrider.draft import NO_DRAFT, Draft
from outrider.tree import chain_parents, children
from outrider.wire import validate_draft

MAX_LESSONS = 1024  # cycles whose hidden states wait for a drafter that lags; the oldest go first

log = structlog.get_logger()


@dataclass(slots=True)
class ShadowRecord:
    """What cycles with drafts would have come to.

    ``stats`` counts them as if they had been; its times are what verifications are expected to
    take, and what was really waited for drafts. ``target_only_ms`` is what the same tokens are
    expected to take without drafts.
    """

    judged_by: Literal["output", "pass"]
    stats: Stats = field(default_factory=Stats)
    target_only_ms: float = 0.0

    @property
    def expected_ms(self) -> float:
        """Milliseconds that the cycles would have taken, the one that reads the prompt left out."""
        return self.stats.draft_ms + self.stats.verify_ms + self.stats.network_ms

    def verdict(
        self, draft: Draft, nodes: tuple[int, ...], next_token_id: int, cost: VerifyCost
    ) -> Verdict:
        """Return the verdict that a draft would have had, with the times that are to be expected
        of it, and count what its tokens take without drafts."""
        without_ms, *with_ms = cost.times_ms(len(draft))
        expected_ms = with_ms[-1] if with_ms else without_ms
        self.target_only_ms += (1 + len(nodes)) * without_ms
        origin = Origin.ONLY
        if draft.num_proposed:
            is_whole = not any(_below(draft, nodes))
            origin = Origin.BONUS if is_whole else Origin.RECOVERED
        return Verdict(
            accepted_nodes=nodes,
            next_token_id=next_token_id,
            next_origin=origin,
            invalid_draft="",
            cached_tokens=0,
            num_passes=0,  # nobody is to learn from this what a pass takes
            queue_ms=0.0,
            compute_ms=max(expected_ms - cost.beside.value, 0.0),
            round_trip_ms=expected_ms,
            margin=float("inf"),
            pool_usage=cost.pool_usage,
        )


def confirmed(draft: Draft, following: Seq[int]) -> tuple[tuple[int, ...], bool]:
    """Return the nodes of a valid draft that the tokens behind it confirm, and whether more tokens
    could change that no more."""
    path: list[int] = []
    for token_id in following:
        fitting = (node for node in _below(draft, path) if draft.token_ids[node] == token_id)
        node = next(fitting, None)
        if node is None:
            return tuple(path), True
        path.append(node)
    return tuple(path), not _below(draft, path)


def _below(draft: Draft, path: Seq[int]) -> list[int]:
    """Return the nodes behind a path that may be accepted."""
    last = path[-1] if path else -1
    if not draft.parents:
        return [last + 1] if last + 1 < len(draft) and not _is_probe(draft, last + 1) else []
    below = children(draft.parents or chain_parents(len(draft)))[last + 1]
    return [node for node in below if not _is_probe(draft, node)]


def _is_probe(draft: Draft, node: int) -> bool:
    return bool(draft.probes) and draft.probes[node]


@dataclass(frozen=True, slots=True)
class Lesson:
    """What the target told with a step of the request, for drafters that learn from it.

    It concerns positions below ``length``.
    """

    length: int
    continuations: Any
    features: StepFeatures


@dataclass(slots=True)
class Output:
    """All tokens that a request has so far."""

    token_ids: list[int]
    lessons: deque[Lesson] = field(default_factory=lambda: deque(maxlen=MAX_LESSONS))
    _grown: asyncio.Event = field(default_factory=asyncio.Event)

    def grow(self, verdict: Verdict) -> None:
        """Take in the verdict of a step without a draft."""
        lesson = Lesson(len(self.token_ids), verdict.continuations, verdict.features)
        self.lessons.append(lesson)
        self.token_ids.append(verdict.next_token_id)
        self._grown.set()

    def lessons_below(self, length: int) -> list[Lesson]:
        """Hand over what concerns positions below a length."""
        taken = []
        while self.lessons and self.lessons[0].length <= length:
            taken.append(self.lessons.popleft())
        return taken

    async def grown(self) -> None:
        """Wait for more."""
        await self._grown.wait()
        self._grown.clear()


@dataclass(slots=True)
class OutputVerification:
    """Implements ``orchestrator.decode.Verification``: judges by the tokens that came."""

    output: Output
    record: ShadowRecord
    drafting: Drafting
    vocab_size: int
    max_draft_tokens: int

    async def send(self, sequence: Sequence, draft: Draft, wanted: FeedbackWanted) -> None:
        """Nothing is sent."""

    async def verdict(self, sequence: Sequence, draft: Draft) -> Verdict:
        """Wait until the output has gone beyond what it confirms of the draft."""
        base = len(sequence)
        invalid = self._objection(draft, sequence)
        judged = NO_DRAFT if invalid else draft
        while True:
            following = self.output.token_ids[base:]
            nodes, is_settled = confirmed(judged, following)
            if is_settled and len(following) > len(nodes):
                break
            await self.output.grown()
        self._teach(base + len(nodes))
        cost = self.drafting.length.lane.verify if sequence.cycle else VerifyCost()
        verdict = self.record.verdict(judged, nodes, following[len(nodes)], cost)
        return replace(verdict, invalid_draft=invalid)

    def _objection(self, draft: Draft, sequence: Sequence) -> str:
        """Return why a verifier would refuse the draft; empty if it would not."""
        found = validate_draft(
            draft.to_proto(),
            vocab_size=self.vocab_size,
            max_draft_tokens=self.max_draft_tokens,
            max_depth=sequence.num_remaining,
        )
        return found or ""

    def _teach(self, length: int) -> None:
        """Hand on what the target told of positions that are now committed here as well."""
        for lesson in self.output.lessons_below(length):
            lease = self.drafting.lease
            if lease is not None and lesson.continuations is not None:
                lease.teach(lesson.continuations)
            if lease is not None and lesson.features.chunks:
                lease.teach_features(lesson.features)


class Uncut:
    """Delivers whatever it is given: where the output ends is the request's own matter."""

    def take(self, tokens: Seq[CommittedToken]) -> Delivery:
        """Return all of it."""
        return Delivery(list(tokens), [""] * len(tokens), None)


@dataclass(slots=True)
class OutputShadow:
    """Implements ``orchestrator.decode.Drafts`` for a request in GREEDY or COUPLED.

    ``sequence`` is the virtual one.
    """

    drafting: Drafting
    record: ShadowRecord
    sequence: Sequence
    vocab_size: int
    max_draft_tokens: int
    _output: Output = field(init=False)
    _task: "asyncio.Task[None] | None" = None

    def __post_init__(self) -> None:
        self._output = Output(list(self.sequence.token_ids))

    async def draft_for(self, sequence: Sequence) -> Draft:
        """Return no draft, at once."""
        if self._task is None:
            self._task = asyncio.create_task(self._run())
            await asyncio.sleep(0)  # so that the first step asks for what the drafter wants
        return NO_DRAFT

    async def prepare_next(self, sequence: Sequence, pending: Draft) -> None:
        """Nothing is to be prepared for the request itself."""

    def learn(self, draft: Draft, verdict: Verdict) -> None:
        """Let the virtual sequence see what came."""
        self.drafting.length.lane.verify.observe(draft, verdict)
        self._output.grow(verdict)

    @property
    def feedback_wanted(self) -> FeedbackWanted:
        """What the drafter wants to learn."""
        return self.drafting.feedback_wanted

    @property
    def num_heals(self) -> int:
        """Times that the drafter's KV was not what was expected."""
        return self.drafting.num_heals

    def close(self) -> None:
        """Stop judging; what is not decided by now does not count."""
        if self._task is not None:
            self._task.cancel()
        self.drafting.close()

    async def _run(self) -> None:
        """Decode the virtual sequence for as long as the request runs; never fails it."""
        verification = OutputVerification(
            self._output, self.record, self.drafting, self.vocab_size, self.max_draft_tokens
        )
        self.sequence.apply(Event.VERIFIER_FOUND)
        steps = decode(self.sequence, verification, self.drafting, Uncut(), self.record.stats)
        try:
            async for _ in steps:
                pass
        except Exception:
            log.exception("shadow_failed")
            self.record.stats.note_fallback("shadow_failed")


@dataclass(slots=True)
class PassShadow:
    """Implements ``orchestrator.decode.Drafts`` for a request in RATIO.

    A draft that would have been accepted in part stands for the tokens that it would have
    committed: the next one is wanted behind those. ``drafting`` must not wait for drafts.
    """

    drafting: Drafting
    record: ShadowRecord
    pressure: Callable[[], Pressure]
    max_slowdown: float
    resume_at: int = 0
    """Committed length at which the next draft would have been used."""
    _base: int = 0
    _writing: "asyncio.Task[None] | None" = None

    async def draft_for(self, sequence: Sequence) -> Draft:
        """Return a draft to be judged, if one is there and the pass has room for it."""
        self._base = len(sequence)
        if self._base < self.resume_at:
            return NO_DRAFT
        draft = await self.drafting.draft_for(sequence)
        if draft and self.drafting.plan.num_traced_ids:
            return self._none("traced")
        if draft and not self._has_room(len(draft)):
            return self._none("no_room_in_pass")
        return draft

    async def prepare_next(self, sequence: Sequence, pending: Draft) -> None:
        """Let the drafter work behind the step, without waiting until it has taken the order."""
        if len(sequence) + 1 < self.resume_at or self._is_writing:
            return
        self._writing = asyncio.create_task(self.drafting.prepare_next(sequence, NO_DRAFT))

    def learn(self, draft: Draft, verdict: Verdict) -> None:
        """Learn from the real pass, and count the cycle that would have been."""
        nodes = verdict.scored_nodes or ()
        self.drafting.learn(draft, replace(verdict, accepted_nodes=nodes))
        if self._base < self.resume_at:
            return
        self.resume_at = self._base + len(nodes) + 1
        is_first = not self.record.stats.num_cycles
        cost = VerifyCost() if is_first else self.drafting.length.lane.verify
        judged = NO_DRAFT if verdict.invalid_draft and not nodes else draft
        would_be = self.record.verdict(judged, nodes, verdict.next_token_id, cost)
        would_be = replace(
            would_be,
            invalid_draft=verdict.invalid_draft,
            no_room_for_draft=verdict.no_room_for_draft,
        )
        self.record.stats.observe(draft, would_be, committed_tokens(draft.token_ids, would_be))

    @property
    def feedback_wanted(self) -> FeedbackWanted:
        """What the drafter wants to learn."""
        return self.drafting.feedback_wanted

    @property
    def num_heals(self) -> int:
        """Times that the drafter's KV was not what was expected."""
        return self.drafting.num_heals

    def close(self) -> None:
        """Give the drafter back."""
        if self._writing is not None:
            self._writing.cancel()
        self.drafting.close()

    @property
    def _is_writing(self) -> bool:
        return self._writing is not None and not self._writing.done()

    def _has_room(self, num_rows: int) -> bool:
        """True while nothing presses, and the rows of as many drafts as there are sequences in a
        pass do not lengthen it by more than is allowed."""
        if self.pressure() is not Pressure.NONE:
            return False
        cost = self.drafting.length.lane.verify
        return num_rows <= cost.rows_within(self.max_slowdown) / cost.num_sharing

    def _none(self, reason: str) -> Draft:
        self.record.stats.note_fallback(reason)
        return NO_DRAFT
