"""Drafts copied from the sequence itself: what followed the last time its ending occurred."""

from collections.abc import Iterable, Sequence


class NgramIndex:
    """An index of the n-grams of one growing sequence.

    Paper: prompt lookup decoding, as in Yang et al. 2023, arXiv:2304.04487.
    """

    def __init__(self, *, min_n: int = 2, max_n: int = 4) -> None:
        """Index n-grams of min_n to max_n tokens.

        Raises: ValueError unless 1 <= min_n <= max_n.
        """
        if not 1 <= min_n <= max_n:
            raise ValueError(f"n-grams of {min_n} to {max_n} tokens")
        self._lengths = range(max_n, min_n - 1, -1)  # longest first
        self._token_ids: list[int] = []
        # n-gram -> where it ended, exclusive, ascending. A list and not only the latest, so that
        # truncation finds the one before.
        self._ends: dict[tuple[int, ...], list[int]] = {}

    def __len__(self) -> int:
        return len(self._token_ids)

    def extend(self, token_ids: Iterable[int]) -> None:
        """Append tokens."""
        for token_id in token_ids:
            self._token_ids.append(token_id)
            for ngram in self._last_ngrams():
                self._ends.setdefault(ngram, []).append(len(self._token_ids))

    def truncate(self, length: int) -> None:
        """Keep the first tokens; Raises: ValueError if there are not that many."""
        if not 0 <= length <= len(self._token_ids):
            raise ValueError(f"cannot truncate {len(self._token_ids)} tokens to {length}")
        while len(self._token_ids) > length:
            for ngram in self._last_ngrams():
                ends = self._ends[ngram]
                ends.pop()
                if not ends:
                    del self._ends[ngram]
            self._token_ids.pop()

    def propose(self, num_draft_tokens: int, *, after: Sequence[int] = ()) -> list[int]:
        """Return what followed the latest earlier occurrence of the longest repeated ending.

        ``after`` are hypothetical tokens that follow the sequence; they are not kept. A copy that
        runs into the end goes on in itself, so a period is continued to any length:

        >>> index = NgramIndex()
        >>> index.extend([7, 1, 2, 3, 1, 2])
        >>> index.propose(5)
        [3, 1, 2, 3, 1]
        """
        if num_draft_tokens <= 0:
            return []
        length = len(self._token_ids)
        self.extend(after)
        try:
            return self._copy(num_draft_tokens)
        finally:
            self.truncate(length)

    def following(self, num_ids: int, *, after: Sequence[int] = ()) -> list[int]:
        """Return different ids that followed repeated endings, of the longest and latest first.

        ``after`` as for ``propose``.
        """
        length = len(self._token_ids)
        self.extend(after)
        try:
            found: dict[int, None] = {}
            for ngram in self._last_ngrams():
                for end in reversed(self._ends[ngram][:-1]):
                    found.setdefault(self._token_ids[end])
                    if len(found) >= num_ids:
                        return list(found)
            return list(found)
        finally:
            self.truncate(length)

    def _copy(self, num_draft_tokens: int) -> list[int]:
        for ngram in self._last_ngrams():
            ends = self._ends[ngram]
            if len(ends) < 2:  # the last is the ending itself
                continue
            known = len(self._token_ids)
            proposed: list[int] = []
            for source in range(ends[-2], ends[-2] + num_draft_tokens):
                copied = self._token_ids[source] if source < known else proposed[source - known]
                proposed.append(copied)
            return proposed
        return []

    def _last_ngrams(self) -> list[tuple[int, ...]]:
        """Return the n-grams that end with the sequence, longest first."""
        known = len(self._token_ids)
        return [tuple(self._token_ids[known - n :]) for n in self._lengths if n <= known]
