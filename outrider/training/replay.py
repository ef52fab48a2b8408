"""Acceptance over text that is already there: what a drafter would have saved on it."""

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Replay:
    """Cycles of greedy decoding walked over answers that the target gave greedily.

    Drafts are kept up to the first token that differs, so what was drafted before a kept token is
    the answer itself, and one pass over the answer tells every draft.
    """

    num_draft_tokens: int
    num_cycles: int = 0
    accepted_at: list[int] = field(default_factory=list)
    """By position in the draft: how often it was kept."""
    reached_at: list[int] = field(default_factory=list)
    """By position in the draft: how often all before it were kept and the answer went on."""
    num_agreeing: int = 0
    num_tokens: int = 0

    def __post_init__(self) -> None:
        self.accepted_at = [0] * self.num_draft_tokens
        self.reached_at = [0] * self.num_draft_tokens

    def add(self, agrees: Sequence[Sequence[bool]]) -> None:
        """Walk one answer.

        ``agrees[i][d]``: a draft that begins at answer token i, with all tokens before it
        committed, says the answer's token at i + d in place d, given that it did so before.
        """
        length = len(agrees)
        self.num_tokens += length
        self.num_agreeing += sum(bool(row[0]) for row in agrees)
        begin = 0
        while begin < length:
            kept = 0
            while kept < self.num_draft_tokens and begin + kept < length:
                self.reached_at[kept] += 1
                if not agrees[begin][kept]:
                    break
                self.accepted_at[kept] += 1
                kept += 1
            self.num_cycles += 1
            begin += kept + 1

    @property
    def agreement(self) -> float:
        """Share of all answer tokens that are the drafter's first choice there."""
        return self.num_agreeing / max(self.num_tokens, 1)

    @property
    def mean_acceptance_length(self) -> float:
        """1 + accepted / cycles; the recovered or bonus token counts."""
        return 1 + sum(self.accepted_at) / max(self.num_cycles, 1)

    @property
    def acceptance_by_position(self) -> list[float]:
        """Of the drafts that were kept so far, how many go on; by position."""
        pairs = zip(self.accepted_at, self.reached_at, strict=True)
        return [kept / reached if reached else 0.0 for kept, reached in pairs]
