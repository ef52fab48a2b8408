"""The decode loop.

Draft, verify, commit, stream. Target-only is the same loop with empty drafts.
"""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Protocol

from orchestrator.drafting import Drafting
from orchestrator.receipt import Stats
from orchestrator.sequence import Sequence
from orchestrator.transcript import Delivery, Transcript
from orchestrator.verdict import Verdict, committed_tokens
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


class Verification(Protocol):
    """The verifier side of one sequence.

    Moves to another equal verifier by itself when one is lost.
    """

    async def send(
        self,
        sequence: Sequence,
        draft: Draft,
        num_continuations: int,
        feature_layers: tuple[int, ...],
    ) -> None:
        """Send the step of the present cycle.

        ``num_continuations``: most likely ids of every verified row that the drafter wants;
        ``feature_layers``: layers of the target whose hidden states it wants.
        """
        ...

    async def verdict(self, sequence: Sequence, draft: Draft) -> Verdict:
        """Wait for the verdict of the step that was sent."""
        ...


async def decode(
    sequence: Sequence,
    verification: Verification,
    drafting: Drafting,
    transcript: Transcript,
    stats: Stats,
) -> AsyncIterator[Cycle]:
    """Yield each cycle as it is committed until the sequence is finished.

    Raises: Unavailable if the verifier is lost and no equal one is there.
    """
    while not sequence.is_finished:
        waited_ms = stats.draft_ms
        draft = await drafting.draft_for(sequence)
        waited_ms = stats.draft_ms - waited_ms
        wanted = drafting.num_continuations, drafting.feature_layers
        await verification.send(sequence, draft, *wanted)
        await drafting.prepare_next(sequence, draft)
        verdict = await verification.verdict(sequence, draft)
        drafting.learn(draft, verdict)
        delivery = transcript.take(committed_tokens(draft.token_ids, verdict))
        done = Cycle(sequence.cycle, len(sequence), draft, verdict, delivery, waited_ms)
        sequence.commit(delivery.tokens, delivery.end)
        stats.observe(draft, verdict, delivery.tokens)
        yield done
