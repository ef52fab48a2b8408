"""What the sampling parameters make of every row: which logits are changed behind which text.

Verifier and drafter ask here, so that both process a row alike: the state follows the committed
ids, and the rows of a draft continue it along each node's own path.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import numpy.typing as npt

from outrider.distribution import Bias, Penalties, RowSampling
from outrider.sampling import SamplingParams
from outrider.token_sets import Bits, pack_ids

Ints = npt.NDArray[np.int64]


class Constrained(Protocol):
    """A text under a constraint, as far as it has come; never changed in place."""

    def behind(self, output_ids: Sequence[int]) -> "Constrained":
        """Return the state behind an output, which may be shorter than the present one."""
        ...

    def allowed(self, token_ids: Sequence[int], parents: Sequence[int]) -> list[Bits | None]:
        """Return which ids may follow the output, then each node of a draft.

        As ``RowSampling.allowed``; None behind a node that is not allowed itself, where it does
        not matter, and where everything is. An empty set says that there is no way on.
        """
        ...

    def after(self, path: Sequence[int]) -> Bits | None:
        """Return which ids a draft may have behind a path; None as above, and where that would
        take too long to say."""
        ...

    def legal(
        self, path: Sequence[int], token_ids: Sequence[int], parents: Sequence[int]
    ) -> list[bool]:
        """Return of each node of a draft behind a path whether it is allowed, its parents too."""
        ...


@dataclass(frozen=True, slots=True)
class SamplingState:
    """Behind one committed text; never changed in place.

    ``seen`` [V] tells the ids of the prompt, ``counts`` [V] how often each is in the output; both
    are there only where there are penalties.
    """

    sampling: SamplingParams
    num_prompt_tokens: int
    length: int
    seen: npt.NDArray[np.bool_] | None = None
    counts: npt.NDArray[np.int32] | None = None
    tail: tuple[int, ...] = ()
    """The last ids, where bad words look at them."""
    constrained: Constrained | None = None
    plain: RowSampling = field(default_factory=RowSampling)
    """What all rows have in common."""

    def rows(
        self, token_ids: Sequence[int] = (), parents: Sequence[int] = ()
    ) -> tuple[RowSampling, ...]:
        """Return how the row behind the text is processed, then the row behind each draft token.

        ``parents`` as in ``outrider.tree``; empty for a chain.
        """
        if not self.sampling.depends_on_text:
            plain, num_masked = self.plain, self._num_masked
            if num_masked <= 0:
                return (plain,) * (len(token_ids) + 1)
            masked = plain.banning(self.sampling.stop_token_ids)
            return tuple(masked if d < num_masked else plain for d in _depths(token_ids, parents))
        paths = _paths(token_ids, parents)
        rows = self._edited([len(path) for path in paths], paths)
        if self.constrained is not None:
            allowed = self.constrained.allowed(token_ids, parents)
            rows = [row.allowing(each) for row, each in zip(rows, allowed, strict=True)]
        return tuple(rows)

    def row(self, path: Sequence[int] = (), num_unknown: int = 0) -> RowSampling:
        """Return how the row behind the text and a path is processed.

        With tokens between that nobody knows yet, as well as one can without them.
        """
        if not self.sampling.depends_on_text:
            masked = len(path) + num_unknown < self._num_masked
            return self.plain.banning(self.sampling.stop_token_ids) if masked else self.plain
        row = self._edited([len(path) + num_unknown], [path])[0]
        if self.constrained is None or num_unknown:
            return row
        return row.allowing(self.constrained.after(path))

    @property
    def _num_masked(self) -> int:
        """Tokens from here on that must not end the text."""
        return self.num_prompt_tokens + self.sampling.min_tokens - self.length

    def _edited(self, depths: Sequence[int], paths: Sequence[Sequence[int]]) -> list[RowSampling]:
        """Return the rows behind the paths, but for the constraint."""
        plain, stops = self.plain, self.sampling.stop_token_ids
        rows = [plain.banning(stops) if depth < self._num_masked else plain for depth in depths]
        if self.sampling.penalises:
            penalties = self._penalties(paths)
            rows = [row.penalising(each) for row, each in zip(rows, penalties, strict=True)]
        if self.sampling.bad_token_ids:
            rows = [row.banning(self._bad(path)) for row, path in zip(rows, paths, strict=True)]
        return rows

    def _penalties(self, paths: Sequence[Sequence[int]]) -> list[Penalties]:
        assert self.seen is not None
        assert self.counts is not None
        sampling = self.sampling
        known = np.flatnonzero(self.seen | (self.counts > 0))
        new = np.array([token_id for path in paths for token_id in path], dtype=np.int64)
        ids = np.union1d(known, new).astype(np.int64)
        seen, counts = self.seen[ids], self.counts[ids].astype(np.int64)
        found = []
        for path in paths:
            own = counts
            if path:
                own = counts.copy()
                np.add.at(own, np.searchsorted(ids, np.array(path, dtype=np.int64)), 1)
            there = seen | (own > 0)
            found.append(
                Penalties(
                    ids[there],
                    own[there],
                    frequency=sampling.frequency_penalty,
                    presence=sampling.presence_penalty,
                    repetition=sampling.repetition_penalty,
                )
            )
        return found

    def _bad(self, path: Sequence[int]) -> tuple[int, ...]:
        """Return the ids that would complete a bad word."""
        text = (*self.tail, *path)
        return tuple(
            bad[-1]
            for bad in self.sampling.bad_token_ids
            if len(bad) == 1 or text[-(len(bad) - 1) :] == bad[:-1]
        )


class SequenceState:
    """Follows the committed ids of a sequence, and gives the state behind them."""

    __slots__ = ("_ids", "_num_prompt_tokens", "_num_same", "_sampling", "_state", "_vocab_size")

    def __init__(
        self,
        sampling: SamplingParams,
        num_prompt_tokens: int,
        vocab_size: int,
        constrained: Constrained | None = None,
    ) -> None:
        self._sampling = sampling
        self._num_prompt_tokens = num_prompt_tokens
        self._vocab_size = vocab_size
        self._ids: list[int] = []
        self._num_same = 0  # ids that the latest state was made of and that still stand
        self._state = SamplingState(
            sampling, num_prompt_tokens, 0, constrained=constrained, plain=self._plain()
        )

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def constrained(self) -> Constrained | None:
        """The text under a constraint, as the latest state has it."""
        return self._state.constrained

    @property
    def output_ids(self) -> Sequence[int]:
        """All ids behind the prompt."""
        return self._ids[self._num_prompt_tokens :]

    def tell(self, start: int, token_ids: Sequence[int]) -> None:
        """Take in that the sequence holds exactly ``token_ids`` from ``start`` on.

        Raises: ValueError if what comes before was not told.
        """
        if start > len(self._ids):
            raise ValueError(f"ids from {start} on, of a sequence of {len(self._ids)}")
        self._num_same = min(self._num_same, start)
        self._ids[start:] = token_ids

    def state(self, constrained: Constrained | None = None) -> SamplingState:
        """Return the state behind all ids.

        ``constrained`` is the constrained text behind them, where that is known already.
        """
        sampling, num_prompt, before = self._sampling, self._num_prompt_tokens, self._state
        seen = counts = None
        tail: tuple[int, ...] = ()
        if sampling.penalises:
            seen, counts = self._counted(before)
        if sampling.bad_token_ids:
            longest = max(map(len, sampling.bad_token_ids)) - 1
            tail = tuple(self._ids[-longest:]) if longest else ()
        if constrained is None and before.constrained is not None:
            constrained = before.constrained.behind(self.output_ids)
        self._state = SamplingState(
            sampling, num_prompt, len(self._ids), seen, counts, tail, constrained, before.plain
        )
        self._num_same = len(self._ids)
        return self._state

    def _counted(
        self, before: SamplingState
    ) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int32]]:
        """Return the ids of the prompt and the counts of the output."""
        num_prompt = self._num_prompt_tokens
        if before.counts is not None and num_prompt <= before.length == self._num_same:
            assert before.seen is not None
            seen, counts = before.seen, before.counts.copy()
            np.add.at(counts, np.array(self._ids[before.length :], dtype=np.int64), 1)
            return seen, counts
        seen = np.zeros(self._vocab_size, dtype=np.bool_)
        seen[self._ids[:num_prompt]] = True
        output = np.array(self._ids[num_prompt:], dtype=np.int64)
        return seen, np.bincount(output, minlength=self._vocab_size).astype(np.int32)

    def _plain(self) -> RowSampling:
        sampling = self._sampling
        allowed = None
        if sampling.allowed_token_ids or sampling.banned_token_ids:
            allowed = pack_ids(
                sampling.allowed_token_ids or range(self._vocab_size), self._vocab_size
            )
            allowed &= ~pack_ids(sampling.banned_token_ids, self._vocab_size)
        return RowSampling(
            temperature=sampling.temperature,
            top_k=sampling.top_k,
            top_p=sampling.top_p,
            min_p=sampling.min_p,
            bias=Bias.of(sampling.logit_bias) if sampling.logit_bias else None,
            allowed=allowed,
        )


def _depths(token_ids: Sequence[int], parents: Sequence[int]) -> list[int]:
    if not parents:
        return list(range(len(token_ids) + 1))
    found = [0]
    for parent in parents:
        found.append(found[parent + 1] + 1)
    return found


def _paths(token_ids: Sequence[int], parents: Sequence[int]) -> list[tuple[int, ...]]:
    """Return the draft tokens before each row: none, then those up to each node."""
    found: list[tuple[int, ...]] = [()]
    for node, token_id in enumerate(token_ids):
        parent = parents[node] if parents else node - 1
        found.append((*found[parent + 1], token_id))
    return found
