"""What a verifier decided, as the decode loop sees it."""

import enum
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orchestrator.kept_features import NO_FEATURES, StepFeatures


class Origin(enum.Enum):
    """Where a committed token came from."""

    ACCEPTED = "accepted"
    RECOVERED = "recovered"
    BONUS = "bonus"
    ONLY = "only"


@dataclass(frozen=True, slots=True)
class Verdict:
    """The committed tokens of one cycle and what they cost.

    Units: times in milliseconds.
    """

    accepted_nodes: tuple[int, ...]
    """Indices of the accepted draft tokens, a path of the draft from its beginning."""
    next_token_id: int
    next_origin: Origin
    invalid_draft: str
    """Why the draft was treated as none; empty if it was not."""
    cached_tokens: int
    num_passes: int
    queue_ms: float
    compute_ms: float
    round_trip_ms: float
    margin: float
    num_rows: int = 0
    """Rows of the step itself: committed ids that the verifier's cache lacked, and the draft."""
    rows_in_pass: int = 0
    """Rows of all sequences in the step's last pass."""
    num_leases: int = 0
    """Open leases of the verifier, after the step like the two below."""
    num_waiting: int = 0
    """Steps that wait for their first pass there."""
    pool_usage: float = 0.0
    """Share of the verifier's KV blocks that leases hold."""
    trace: Any = None
    """What decided, as the verifier told it; passed on to the client as it is. None: not asked."""

    continuations: Any = None
    """What the target said of the verified rows, for the drafter; passed on as it is."""

    features: StepFeatures = NO_FEATURES
    """The target's hidden states of what is committed, for the drafter; passed on as they are."""

    logprobs: Sequence[Any] = ()
    """One for each committed token, where the request asked; passed on as they are."""

    prompt_logprobs: Sequence[Any] = ()
    """Of the prompt, in the first verdict, where the request asked."""

    rank_uniforms: Sequence[float] = ()
    """One for each committed token, where the request is watched (``outrider.uniformity``)."""

    no_room_for_draft: bool = False
    """The draft was treated as none through no fault of the drafter's."""

    scored_nodes: tuple[int, ...] | None = None
    """What would have been accepted of a draft that was only judged; None: it was to be used."""

    @property
    def num_accepted(self) -> int:
        """Draft tokens that were kept."""
        return len(self.accepted_nodes)


@dataclass(frozen=True, slots=True)
class CommittedToken:
    """A final token."""

    token_id: int
    origin: Origin
    logprobs: Any = None
    """As the verifier told them; None: not asked."""


def committed_tokens(draft: tuple[int, ...], verdict: Verdict) -> list[CommittedToken]:
    """Return what the verdict commits.

    The accepted tokens of the draft and the target's own token.
    """
    tokens = [(draft[node], Origin.ACCEPTED) for node in verdict.accepted_nodes]
    tokens.append((verdict.next_token_id, verdict.next_origin))
    logprobs = verdict.logprobs or [None] * len(tokens)
    return [CommittedToken(*each, own) for each, own in zip(tokens, logprobs, strict=True)]
