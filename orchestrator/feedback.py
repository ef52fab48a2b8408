"""What a drafter wants to learn of a verification, beside the verdict."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FeedbackWanted:
    """Asked for with a step, and handed on to the drafter with its next advance.

    ``num_continuations``: most likely ids of every verified row; ``feature_layers``: layers of the
    target whose hidden states are wanted.
    """

    num_continuations: int = 0
    feature_layers: tuple[int, ...] = ()


NO_FEEDBACK = FeedbackWanted()
