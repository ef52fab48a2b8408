"""What heads have read of sequences that ended: prompts begin alike, and a verifier that has the
beginning in its cache computes no hidden states of it."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from drafter_svc.heads.work import HeadState

MAX_KEPT_PAIRS = 65_536
MAX_KEPT_SEQUENCES = 64


@dataclass(frozen=True, slots=True)
class Kept:
    """A state, and the ids that it has read the pairs of, from position ``begin`` on."""

    token_ids: tuple[int, ...]
    begin: int
    state: HeadState


@dataclass(slots=True)
class KeptStates:
    """The newest states of every salt, bounded in sequences and pairs of all salts together.

    A salt is the target's vocabulary and the tenant's cache salt: nothing is shared across.
    """

    max_pairs: int = MAX_KEPT_PAIRS
    max_sequences: int = MAX_KEPT_SEQUENCES
    num_pairs: int = 0
    _kept: "OrderedDict[int, tuple[str, Kept]]" = field(default_factory=OrderedDict)
    _next: int = 0

    def keep(self, salt: str, kept: Kept) -> None:
        """Keep a state; the oldest go first."""
        if not kept.state.num_pairs:
            return
        self._kept[self._next] = (salt, kept)
        self._next += 1
        self.num_pairs += kept.state.num_pairs
        while self._kept and (
            self.num_pairs > self.max_pairs or len(self._kept) > self.max_sequences
        ):
            _, (_, oldest) = self._kept.popitem(last=False)
            self.num_pairs -= oldest.state.num_pairs

    def find(self, salt: str, token_ids: Sequence[int], position: int) -> Kept | None:
        """Return a state with all pairs before a position, where one has read the same ids."""
        wanted = tuple(token_ids[: position + 1])  # a pair has the token behind its position
        for number in reversed(self._kept):
            owner, kept = self._kept[number]
            reaches = kept.begin + kept.state.num_pairs >= position > kept.begin
            if owner == salt and reaches and kept.token_ids[: position + 1] == wanted:
                return kept
        return None
