"""Answers as an orchestrator could have given them."""

from collections.abc import Sequence

from outrider.audit.asking import Answer, Ask, Prompt
from outrider.audit.plan import TARGET_ONLY, Way
from outrider.sampling import SamplingParams
from outrider.v1 import generation_pb2 as pb


def answer(
    token_ids: Sequence[int],
    *,
    way: Way = TARGET_ONLY,
    prompt: int = 0,
    category: str = "some",
    accepted: Sequence[int] = (),
    num_drafted: int = 0,
    first_ms: float = 10.0,
    total_ms: float = 20.0,
    temperature: float = 0.0,
    text: str = "",
) -> Answer:
    """Return an answer whose receipt says what its stream said."""
    histogram = [accepted.count(n) for n in range(max(accepted, default=-1) + 1)]
    receipt = pb.Receipt(
        num_draft_tokens=num_drafted,
        num_accepted_draft_tokens=sum(accepted),
        num_spec_steps=len(accepted),
        acceptance_histogram=histogram,
    )
    sampling = SamplingParams(temperature=temperature, seed=0, max_tokens=max(len(token_ids), 1))
    return Answer(
        ask=Ask(Prompt(prompt, category, (1, 2)), way, sampling),
        token_ids=tuple(token_ids),
        text=text,
        accepted=tuple(accepted),
        drafted=(),
        receipt=receipt,
        first_ms=first_ms,
        total_ms=total_ms,
    )
