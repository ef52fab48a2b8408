"""The decode loop.

Draft, verify, commit, stream. Target-only is the same loop with empty drafts.
"""

from collections.abc import AsyncIterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from typing import Protocol

from orchestrator.feedback import FeedbackWanted
from orchestrator.receipt import Stats
from orchestrator.sequence import Sequence
from orchestrator.transcript import Delivery
from orchestrator.verdict import CommittedToken, Verdict, committed_tokens
from outrider.draft import Draft


@dataclass(frozen=True, slots=True)
class Cycle:
    """One turn of the loop: what was proposed, what was decided, what is delivered.

    ``wait_ms`` is what it waited for the draft.
    """

    number: int
    base_position: int
    draft: Draft
    verdict: Verdict
    delivery: Delivery
    wait_ms: float


class Drafts(Protocol):
    """The drafter side of one sequence; never fails, falls back instead."""

    async def draft_for(self, sequence: Sequence) -> Draft:
        """Return the draft for the sequence as it is now; empty if there is none."""
        ...

    async def prepare_next(self, sequence: Sequence, pending: Draft) -> None:
        """Let the drafter work on what follows while ``pending`` is being verified."""
        ...

    def learn(self, draft: Draft, verdict: Verdict) -> None:
        """Take in what came of a draft."""
        ...

    @property
    def feedback_wanted(self) -> FeedbackWanted:
        """What the drafter wants to learn of the next verification."""
        ...

    @property
    def num_heals(self) -> int:
        """Times that the drafter's KV was not what was expected, known once it is closed."""
        ...

    def close(self) -> None:
        """End the drafter's lease."""
        ...


class Deliverer(Protocol):
    """What turns committed tokens into an output."""

    def take(self, tokens: Seq[CommittedToken]) -> Delivery:
        """Return what is delivered of a cycle's tokens."""
        ...


class Verification(Protocol):
    """The verifier side of one sequence.

    Moves to another equal verifier by itself when one is lost.
    """

    async def send(self, sequence: Sequence, draft: Draft, wanted: FeedbackWanted) -> None:
        """Send the step of the present cycle."""
        ...

    async def verdict(self, sequence: Sequence, draft: Draft) -> Verdict:
        """Wait for the verdict of the step that was sent."""
        ...


async def decode(
    sequence: Sequence,
    verification: Verification,
    drafting: Drafts,
    transcript: Deliverer,
    stats: Stats,
) -> AsyncIterator[Cycle]:
    """Yield each cycle as it is committed until the sequence is finished.

    Raises: Unavailable if the verifier is lost and no equal one is there.
    """
    while not sequence.is_finished:
        waited_ms = stats.draft_ms
        draft = await drafting.draft_for(sequence)
        waited_ms = stats.draft_ms - waited_ms
        await verification.send(sequence, draft, drafting.feedback_wanted)
        await drafting.prepare_next(sequence, draft)
        verdict = await verification.verdict(sequence, draft)
        drafting.learn(draft, verdict)
        delivery = transcript.take(committed_tokens(draft.token_ids, verdict))
        done = Cycle(sequence.cycle, len(sequence), draft, verdict, delivery, waited_ms)
        sequence.commit(delivery.tokens, delivery.end)
        stats.observe(draft, verdict, delivery.tokens)
        yield done
