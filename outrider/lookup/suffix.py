"""Drafts by suffix matching: the most frequent continuation of the longest repeated endings.

Paper: suffix decoding, Oliaro et al. 2024, arXiv:2411.04975. Theirs walks suffix trees; here a hash
of the last two ids finds the occurrences, and the same counts are taken among these.
"""

from array import array
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

ANCHOR = 2  # ids that an occurrence must share with the ending
MAX_MATCH = 32  # longer matches say no more
MAX_OCCURRENCES = 64  # the latest ones are looked at
BOUNDARY = -1  # between two texts; equal to no id


@dataclass(frozen=True, slots=True)
class Match:
    """A proposed continuation.

    ``score``: how many of its tokens are expected to be right, by the counts; ``length``: ids of
    the ending that occurred before.
    """

    token_ids: tuple[int, ...] = ()
    score: float = 0.0
    length: int = 0


@dataclass(slots=True)
class IndexedText:
    """Ids with the places where each pair of them ended; grows behind, shrinks at both ends.

    Positions count from the first id ever added, so that forgetting the oldest moves none.
    """

    _ids: list[int] = field(default_factory=list)
    _first: int = 0
    _ends: dict[int, "array[int]"] = field(default_factory=dict)
    """By the pair as one number; a compact list of positions, ascending."""

    def __len__(self) -> int:
        """Return the position behind the last id."""
        return self._first + len(self._ids)

    @property
    def num_kept(self) -> int:
        """Ids that are still there."""
        return len(self._ids)

    def __getitem__(self, position: int) -> int:
        """Return an id that is still there."""
        return self._ids[position - self._first]

    def extend(self, token_ids: Iterable[int]) -> None:
        """Append ids."""
        for token_id in token_ids:
            self._ids.append(token_id)
            if len(self._ids) >= ANCHOR:
                self._ends.setdefault(self._pair(len(self)), array("q")).append(len(self))

    def truncate(self, length: int) -> None:
        """Forget the ids from a position on."""
        while len(self) > length:
            if len(self._ids) >= ANCHOR:
                self._forget(self._pair(len(self)), newest=True)
            self._ids.pop()

    def forget_oldest(self, count: int) -> None:
        """Forget the first ids that are still there."""
        for end in range(self._first + ANCHOR, self._first + count + ANCHOR):
            if end <= len(self):
                self._forget(self._pair(end), newest=False)
        del self._ids[:count]
        self._first += count

    def occurrences(self, ending: Sequence[int]) -> list[int]:
        """Return the latest places where the last ids of ``ending`` ended, latest first."""
        if len(ending) < ANCHOR:
            return []
        ends = self._ends.get(_key(ending[-2], ending[-1]))
        return [] if ends is None else ends[-MAX_OCCURRENCES:].tolist()[::-1]

    def match_length(self, end: int, ending: Sequence[int]) -> int:
        """Return how many ids before ``end`` equal the last ones of ``ending``."""
        longest = min(MAX_MATCH, len(ending), end - self._first)
        for length in range(ANCHOR, longest):
            if self._ids[end - 1 - length - self._first] != ending[-1 - length]:
                return length
        return longest

    def _pair(self, end: int) -> int:
        at = end - self._first
        return _key(self._ids[at - 2], self._ids[at - 1])

    def _forget(self, pair: int, *, newest: bool) -> None:
        ends = self._ends[pair]
        ends.pop(-1 if newest else 0)
        if not ends:
            del self._ends[pair]


def _key(first: int, second: int) -> int:
    """Return two ids as one number; ids are below 2**32, and the boundary is -1."""
    return (first + 1) << 33 | (second + 1)


@dataclass(slots=True)
class SuffixIndex:
    """The endings of one growing sequence, and of texts that others have finished.

    ``min_probability``: a continuation is followed while all counts so far, multiplied, reach it.
    """

    shared: "SharedTexts | None" = None
    min_probability: float = 0.1
    _own: IndexedText = field(default_factory=IndexedText)

    def __len__(self) -> int:
        """Return the number of ids of the sequence."""
        return len(self._own)

    def extend(self, token_ids: Iterable[int]) -> None:
        """Append ids to the sequence."""
        self._own.extend(token_ids)

    def truncate(self, length: int) -> None:
        """Keep the first ids; Raises: ValueError if there are not that many."""
        if not 0 <= length <= len(self._own):
            raise ValueError(f"cannot truncate {len(self._own)} tokens to {length}")
        self._own.truncate(length)

    def tail(self, start: int) -> list[int]:
        """Return the ids from a position on."""
        return [self._own[position] for position in range(start, len(self._own))]

    def propose(self, num_draft_tokens: int, *, after: Sequence[int] = ()) -> list[int]:
        """Return the ids of the best match behind ``after``, hypothetical ids that are not kept."""
        return list(self.match(num_draft_tokens, after=after).token_ids)

    def match(self, num_draft_tokens: int, *, after: Sequence[int] = ()) -> Match:
        """Return the continuation with the best score; of equal ones that of the longer match."""
        length = len(self._own)
        self._own.extend(after)
        try:
            ending = self.tail(max(0, len(self._own) - MAX_MATCH))
            best = self._best(self._own, ending, num_draft_tokens, is_own=True)
            if self.shared is not None:
                other = self._best(self.shared.text, ending, num_draft_tokens, is_own=False)
                best = max(best, other, key=lambda match: (match.score, match.length))
            return best
        finally:
            self._own.truncate(length)

    def following(self, num_ids: int, *, after: Sequence[int] = ()) -> list[int]:
        """Return different ids that may follow ``after``: the best match's first, then others.

        Those behind longer matches come first, of equal ones the more frequent.
        """
        found = dict.fromkeys(self.match(1, after=after).token_ids)
        length = len(self._own)
        self._own.extend(after)
        try:
            ending = self.tail(max(0, len(self._own) - MAX_MATCH))
            texts = [self._own] if self.shared is None else [self._own, self.shared.text]
            seen = Counter(
                (text.match_length(end, ending), text[end])
                for text in texts
                for end in text.occurrences(ending)
                if end < len(text) and text[end] != BOUNDARY
            )
        finally:
            self._own.truncate(length)
        for (_, token_id), _ in sorted(seen.items(), key=lambda each: (-each[0][0], -each[1])):
            found.setdefault(token_id)
        return list(found)[:num_ids]

    def _best(
        self, text: IndexedText, ending: Sequence[int], num_draft_tokens: int, *, is_own: bool
    ) -> Match:
        best = Match()
        if num_draft_tokens <= 0:
            return best
        ends = [end for end in text.occurrences(ending) if not is_own or end < len(text)]
        lengths = [text.match_length(end, ending) for end in ends]
        for length in sorted(set(lengths), reverse=True):
            places = [end for end, matched in zip(ends, lengths, strict=True) if matched >= length]
            found = self._follow(text, places, num_draft_tokens, length, is_own=is_own)
            if found.score > best.score:
                best = found
        return best

    def _follow(
        self,
        text: IndexedText,
        places: list[int],
        num_draft_tokens: int,
        length: int,
        *,
        is_own: bool,
    ) -> Match:
        """Walk the most frequent continuation of these places, latest first among equals.

        A copy that runs into the end of the sequence goes on in itself, so a period is continued.
        """
        known = len(text)
        token_ids: list[int] = []
        probability, score = 1.0, 0.0
        while len(token_ids) < num_draft_tokens:
            following: dict[int, int] = {}
            for place in places:
                at = place + len(token_ids)
                if at < known:
                    following[place] = text[at]
                elif is_own:
                    following[place] = token_ids[at - known]
            followed = {place: i for place, i in following.items() if i != BOUNDARY}
            if not followed:
                break
            token_id, count = Counter(followed.values()).most_common(1)[0]
            probability *= count / len(places)
            if probability < self.min_probability:
                break
            token_ids.append(token_id)
            score += probability
            places = [place for place, i in followed.items() if i == token_id]
        return Match(tuple(token_ids), score, length)


@dataclass(slots=True)
class SharedTexts:
    """Finished outputs of one cache salt; the oldest are forgotten."""

    max_tokens: int
    text: IndexedText = field(default_factory=IndexedText)
    _lengths: deque[int] = field(default_factory=deque)

    @property
    def num_charged(self) -> int:
        """Ids kept, and a little for keeping any."""
        return self.text.num_kept + 100

    def add(self, token_ids: Sequence[int]) -> None:
        """Remember an output; of one that is too long the end."""
        kept = token_ids[-(self.max_tokens - 1) :]
        if not kept:
            return
        self.text.extend([*kept, BOUNDARY])
        self._lengths.append(len(kept) + 1)
        while self.text.num_kept > self.max_tokens:
            self.text.forget_oldest(self._lengths.popleft())


@dataclass(slots=True)
class SaltedTexts:
    """What may be shared, apart for every cache salt; the salts used longest ago are forgotten.

    A remembered id takes about 200 bytes.
    """

    max_tokens_per_salt: int = 50_000
    max_tokens: int = 500_000
    """Of all salts together."""
    _texts: OrderedDict[str, SharedTexts] = field(default_factory=OrderedDict)

    def of(self, salt: str) -> SharedTexts:
        """Return the texts of a salt."""
        texts = self._texts.pop(salt, None)
        if texts is None:
            texts = SharedTexts(self.max_tokens_per_salt)
        self._texts[salt] = texts
        num_kept = sum(each.num_charged for each in self._texts.values())
        while num_kept > self.max_tokens and len(self._texts) > 1:
            _, oldest = self._texts.popitem(last=False)
            num_kept -= oldest.num_charged
        return texts

    def __len__(self) -> int:
        return len(self._texts)
